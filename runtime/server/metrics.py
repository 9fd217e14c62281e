"""Prometheus metrics of engines and front ends (docs/operations/observability.md#metrics), and their throughput log."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import platform
import time
from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

import runtime
from runtime.request.eager_reason import EagerReason
from runtime.request.engine_messages import EngineInfo, EngineStats

stats_log = logging.getLogger("unmask.load")

# The library does not declare the types of these. Values that are those of the last scrape are not formatted again.
_format_number: Callable[[float], str] = lru_cache(4096)(floatToGoString)
_leave_out_created: Callable[[], None] = disable_created_metrics
_leave_out_created()  # a tenth of the samples, which this text format has no use for

STATS_SECONDS = 10.0  # between lines of the log with the throughput
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

TOKEN_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)

# reasons for which the server closes a connection; all are exported from the start, so that the first is an increase
CLOSE_REASONS = [
    "slow_head",
    "slow_body",
    "stalled",
    "invalid",
    "head_too_large",
    "discarded",
    "gave_way",
    "no_room",
    "memory",
]


class RequestMetrics(CollectorRegistry):
    """Metrics of the requests and connections of one front end."""

    def __init__(self) -> None:
        super().__init__()
        counter, histogram = partial(Counter, registry=self), partial(Histogram, registry=self)
        seconds = partial(histogram, buckets=SECONDS)
        gauge = partial(Gauge, registry=self, multiprocess_mode="livesum")
        self.requests = counter(
            "unmask_requests",
            "HTTP requests for generation by outcome: stop, length, max_nfe, repetition, refused, timeout, aborted, "
            "error.",
            ["outcome"],
        )
        self.first_token = seconds("unmask_time_to_first_token_seconds", "Time to the first text of streams.")
        text = "Time until a full block of a stream is final."
        self.first_block = seconds("unmask_time_to_first_block_seconds", text)
        text = "Time per output token, without queue time."
        self.per_token = histogram("unmask_time_per_output_token_seconds", text, buckets=TOKEN_SECONDS)
        self.end_to_end = seconds("unmask_request_seconds", "Time from arrival to the end of the response.")
        self.queue = seconds("unmask_queue_seconds", "Time until the engine admitted the request.")
        text = "Output tokens, including the end of sequence, per forward."
        self.tokens_per_forward = histogram("unmask_tokens_per_forward", text, buckets=POWERS)
        text = "Questions that decisions have answered, by type: predicate, choice, score."
        self.decision_questions = counter("unmask_decisions_questions", text, ["type"])
        self.connections = gauge("unmask_connections", "Open client connections.")
        self.max_connections = gauge("unmask_max_connections", "Maximum client connections (--max-connections).")
        text = "Connections closed by the server, by reason (docs/reference/api.md)."
        self.closed_by_server = counter("unmask_connections_closed_by_server", text, ["reason"])
        for reason in CLOSE_REASONS:
            self.closed_by_server.labels(reason)


# totals of EngineStats -> (metric without prefix and suffix, help)
_TOTALS = {
    "prompt_tokens": ("prompt_tokens", "Tokens of admitted prompts."),
    "generated_tokens": ("generated_tokens", "Output tokens."),
    "prefix_hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    "steps": ("engine_steps", "Engine steps."),
    "steps_replayed": ("engine_steps_replayed", "Engine steps that only replayed CUDA graphs."),
    "edits": ("edits", "Unmasked tokens replaced by editing."),
    "remasks": ("remasks", "Unmasked tokens that were masked again."),
    "forced": ("forced_commits", "Tokens unmasked although no position reached the threshold."),
    "adapter_evictions": ("lora_evictions", "Adapters evicted from device memory."),
    "preemptions": ("preemptions", "Requests preempted because KV pages ran out."),
}
_REPLICA_TOTALS = {  # these have the names of their fields
    "generated_tokens": "Output tokens since the start of the replica.",
    "prefix_hit_tokens": "Prompt tokens found in the prefix cache since the start of the replica.",
}
_KINDS = ("prefill", "denoise", "commit", "read")
_EVERY_TOTAL = (*_TOTALS, *(f"forwards_{kind}" for kind in _KINDS), *(reason.stats_field for reason in EagerReason))
_GAUGES = {
    "pages_total": ("kv_pages", "KV pages of all engines."),
    "pages_used": ("kv_pages_used", "KV pages held by live requests."),
    "pages_cached": ("kv_pages_cached", "KV pages held by the prefix cache only, which can be reclaimed."),
    "adapter_bytes": (
        "lora_host_memory_bytes",
        "Host memory of the adapters of all engines, in the first rank of each.",
    ),
    "graph_bytes": ("graph_memory_bytes", "Device memory of captured CUDA graphs."),
    "graphs_pending": ("graphs_pending", "CUDA graphs that are yet to be captured while no request runs."),
}


def _by_label(family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[object, float]]) -> Metric:
    """Returns `family` with a sample for each value of its label."""
    for label, value in values:
        family.add_metric([str(label)], value)
    return family


class EngineMetrics(Collector):
    """Totals and gauges of the engines. Totals include those of backends that have exited.

    Attributes:
        live_by_replica: live requests of each replica.
        work_by_replica: estimated tokens left in these requests.
        max_running_requests: --max-num-reqs of an engine. page_tokens: tokens of a KV page.
        max_adapters: adapters that a device holds at once; 0: none.
        live_by_adapter: live requests of each adapter. adapters: names of all adapters.
        refresh: updates the live requests before they are read, if other processes have them.
    """

    def __init__(self) -> None:
        self.current: dict[int, EngineStats] = {}
        self.past = EngineStats()
        self.live_by_replica: Sequence[int] = ()
        self.work_by_replica: Sequence[int] = ()
        self.max_running_requests = self.page_tokens = self.max_adapters = 0
        self.live_by_adapter: Mapping[str, int] = {}
        self.adapters: Collection[str] = ()
        self.refresh: Callable[[], None] = lambda: None
        self._adapters_in_use: tuple[Mapping[str, str], float] = {}, 0.0  # labels, and time of their last change

    def retire(self, replica: int) -> None:
        stats = self.current.pop(replica, None)
        if stats is not None:
            for name in _EVERY_TOTAL:
                setattr(self.past, name, getattr(self.past, name) + getattr(stats, name))

    def _sum(self, name: str) -> int:
        return sum(getattr(stats, name) for stats in self.current.values())

    def total(self, name: str) -> int:
        """Returns a total of all engines, also of those that have exited."""
        return int(getattr(self.past, name)) + self._sum(name)

    def usage(self) -> float:
        """Returns the fraction of KV pages that live requests hold."""
        pages = self._sum("pages_total")
        return self._sum("pages_used") / pages if pages else 0.0

    def requests(self) -> tuple[int, int]:
        """Returns the numbers of running and waiting requests.

        Engines report between steps, without the requests that the step finished: an engine that answers each request
        in one step would seem idle. So requests are counted here, and an engine reports only how many of them wait.
        """
        self.refresh()
        running = waiting = 0
        for replica, live in enumerate(self.live_by_replica):
            reported = self.current[replica].waiting if replica in self.current else 0
            wait = min(max(reported, live - self.max_running_requests), live)
            running, waiting = running + live - wait, waiting + wait
        return running, waiting

    def _adapters(self) -> Iterator[Metric]:
        live = {name: self.live_by_adapter.get(name, 0) for name in sorted(self.adapters)}
        waiting = Counts[str]()
        for stats in self.current.values():
            waiting.update(stats.adapters_waiting)
        held = {name: min(waiting[name], count) for name, count in live.items()}
        run = GaugeMetricFamily("unmask_lora_requests_running", "Running requests of an adapter.", labels=["lora"])
        yield _by_label(run, ((name, count - held[name]) for name, count in live.items()))
        wait = GaugeMetricFamily("unmask_lora_requests_waiting", "Waiting requests of an adapter.", labels=["lora"])
        yield _by_label(wait, held.items())
        if not self.max_adapters:
            return
        labels = {
            "max_lora": str(self.max_adapters),
            "running_lora_adapters": ",".join(name for name, count in live.items() if count > held[name]),
            "waiting_lora_adapters": ",".join(name for name, count in held.items() if count),
        }
        if labels != self._adapters_in_use[0]:
            self._adapters_in_use = labels, time.time()
        text = "Time of the last change of the adapters with running and waiting requests, which its labels list."
        info = GaugeMetricFamily("unmask_lora_requests_info", text, labels=list(labels))
        info.add_metric(list(labels.values()), self._adapters_in_use[1])
        yield info

    def _replicas(self) -> Iterator[Metric]:
        """Yields metrics per replica."""
        label = ["replica"]
        gauge, counter = partial(GaugeMetricFamily, labels=label), partial(CounterMetricFamily, labels=label)
        replicas = range(len(self.live_by_replica))
        up = gauge("unmask_replica_up", "1 if the engine of the replica is ready.")
        yield _by_label(up, ((replica, int(replica in self.current)) for replica in replicas))
        requests = gauge("unmask_replica_requests", "Active requests of the replica.")
        yield _by_label(requests, enumerate(self.live_by_replica))
        work = gauge("unmask_replica_work_tokens", "Estimated tokens left in the active requests of the replica.")
        yield _by_label(work, enumerate(self.work_by_replica))
        for name, text in _REPLICA_TOTALS.items():
            values = ((r, getattr(self.current[r], name) if r in self.current else 0) for r in replicas)
            yield _by_label(counter(f"unmask_replica_{name}", text), values)

    def collect(self) -> Iterator[Metric]:
        running, waiting = self.requests()
        yield GaugeMetricFamily("unmask_requests_running", "Requests being prefilled or decoded.", value=running)
        yield GaugeMetricFamily("unmask_requests_waiting", "Requests waiting for a slot in an engine.", value=waiting)
        yield from self._adapters()
        max_running = self.max_running_requests * len(self.live_by_replica)
        text = "Maximum running requests (--max-num-reqs of all engines)."
        yield GaugeMetricFamily("unmask_max_running_requests", text, value=max_running)
        yield from self._replicas()
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"unmask_{name}", text, value=self._sum(field))
        yield GaugeMetricFamily("unmask_kv_page_tokens", "Tokens of a KV page.", value=self.page_tokens)
        pages, used, cached = self._sum("pages_total"), self._sum("pages_used"), self._sum("pages_cached")
        yield GaugeMetricFamily("unmask_kv_pages_free", "Free KV pages.", value=pages - used - cached)
        text = "Fraction of KV pages held by live requests."
        yield GaugeMetricFamily("unmask_kv_usage_ratio", text, value=self.usage())
        for field, (name, text) in _TOTALS.items():
            yield CounterMetricFamily(f"unmask_{name}", text, value=self.total(field))
        forwards = CounterMetricFamily("unmask_forwards", "Forwards of requests, by kind.", labels=["kind"])
        yield _by_label(forwards, ((kind, self.total(f"forwards_{kind}")) for kind in _KINDS))
        text = "Engine steps that were not replayed from CUDA graphs, by reason."
        eager = CounterMetricFamily("unmask_engine_steps_eager", text, labels=["reason"])
        yield _by_label(eager, ((reason.value, self.total(reason.stats_field)) for reason in EagerReason))


class StatsLogger:
    """Logs the throughput of the engines every ten seconds, unless they are idle."""

    def __init__(self, figures: EngineMetrics) -> None:
        self._figures = figures
        self._last = self._totals()
        self._at = time.monotonic()

    def _totals(self) -> dict[str, int]:
        return {name: self._figures.total(name) for name in ("prompt_tokens", "generated_tokens", "forwards_denoise")}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STATS_SECONDS)
            self.log_stats()

    def log_stats(self) -> None:
        now, totals = time.monotonic(), self._totals()
        done = {name: totals[name] - self._last[name] for name in totals}
        seconds, self._at, self._last = now - self._at, now, totals
        running, waiting = self._figures.requests()
        if not (any(done.values()) or running or waiting):
            return
        forwards, usage = done["forwards_denoise"], self._figures.usage()
        fields = {
            "generated_tokens_per_second": round(done["generated_tokens"] / seconds, 1),
            "prompt_tokens_per_second": round(done["prompt_tokens"] / seconds, 1),
            "tokens_per_forward": round(done["generated_tokens"] / forwards, 2) if forwards else None,
            "running": running,
            "waiting": waiting,
            "kv_usage": round(usage, 3),
        }
        parallel = fields["tokens_per_forward"]
        shown = {**fields, "tokens_per_forward": "n/a" if parallel is None else parallel, "kv_percent": 100 * usage}
        stats_log.info(
            "%(generated_tokens_per_second).0f tokens/s, %(prompt_tokens_per_second).0f prompt tokens/s, "
            "%(tokens_per_forward)s tokens/forward, %(running)d running, %(waiting)d waiting, "
            "%(kv_percent).0f %% of KV pages used",
            shown,
            extra={"fields": fields},
        )


# The operator reads these by their bare names (autoscaler/scrape.py).
UNLABELLED = frozenset(
    {
        "unmask_requests_running",
        "unmask_requests_waiting",
        "unmask_max_running_requests",
        "unmask_kv_usage_ratio",
        "unmask_model_load_seconds",
    }
)


class ProcessMetrics(Collector):
    """Metrics ``process_*`` of several processes, with the label ``process``.

    They are read once per `PROCESS_SECONDS`: the system takes as long for them as all other metrics take.

    `others`: returns pids of further processes by name; this process is "frontend".
    """

    def __init__(self, others: Callable[[], Mapping[str, int]]) -> None:
        self.others = others
        self.read_at = -math.inf
        self._pid = os.getpid()
        self._one = ProcessCollector(pid=lambda: self._pid, registry=None)
        self._families: dict[str, Metric] = {}

    def collect(self) -> Iterable[Metric]:
        if time.monotonic() - self.read_at >= PROCESS_SECONDS:
            self.read_at = time.monotonic()
            self._families = {}
            for name, pid in {"frontend": os.getpid(), **self.others()}.items():
                self._pid = pid
                for metric in self._one.collect():  # nothing of one that has just ended
                    samples = [sample._replace(labels={"process": name}) for sample in metric.samples]
                    metric.samples = []
                    self._families.setdefault(metric.name, metric).samples += samples
        return self._families.values()


_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_HOST_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_HISTOGRAMS = {  # lists of EngineStats -> (metric without prefix, help, buckets)
    "step_seconds": ("step_seconds", "Duration of an engine step.", _STEP_SECONDS),
    "device_seconds": ("step_device_seconds", "Device time of engine steps with sampling.", _STEP_SECONDS),
    "host_seconds": ("step_host_seconds", "Host time of engine steps with sampling.", _HOST_SECONDS),
    "batch_sizes": ("batch_size", "Requests in an engine step.", POWERS),
    "block_steps": ("steps_per_block", "Steps per finished block.", POWERS),
}
PROCESS_SECONDS = 1.0  # between readings of the metrics of processes
KEPT_SECONDS = 0.2  # time for which a text of /metrics is returned again
_RENDERING = 0.1  # most that may go into rendering /metrics, of a processor
_VERSIONS = {"version": runtime.__version__, "python": platform.python_version()}


class TextFormat:
    """Writes metrics in Prometheus' text format, as ``prometheus_client.generate_latest`` does.

    A head of a metric, or the name and labels of a sample, are formatted when they first occur. The library formats
    them each time, which takes most of its time.

    Args:
        added: labels that all samples get.
        bare: names of the metrics whose samples do not get them.
    """

    def __init__(self, added: Mapping[str, str], bare: Collection[str]) -> None:
        self._added = added
        self._bare = bare
        self._heads: dict[str, str] = {}  # by name of the metric
        self._names: dict[tuple[str, ...], str] = {}  # by name and label values, for those of the last text

    def write(self, metrics: Iterable[Metric]) -> bytes:
        lines: list[str] = []
        last, self._names = self._names, {}
        for metric in metrics:
            lines.append(self._heads.get(metric.name) or self._head(metric))
            for sample in metric.samples:
                key = (sample.name, *sample.labels.values())
                name = last.get(key) or self._name(metric, sample)
                self._names[key] = name
                lines.append(f"{name} {_format_number(sample.value)}\n")
        return "".join(lines).encode()

    def _head(self, metric: Metric) -> str:
        suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
        kind = {"info": "gauge", "unknown": "untyped"}.get(metric.type, metric.type)
        text = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
        head = f"# HELP {metric.name}{suffix} {text}\n# TYPE {metric.name}{suffix} {kind}\n"
        return self._heads.setdefault(metric.name, head)

    def _name(self, metric: Metric, sample: Sample) -> str:
        labels = sample.labels if metric.name in self._bare else {**sample.labels, **self._added}
        shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
        return f"{sample.name}{{{shown}}}" if shown else sample.name


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Metrics:
    """All metrics of /metrics. They have the label ``model_name``, except for those of `UNLABELLED`."""

    def __init__(self, model_name: str, observed: Collector) -> None:
        """Registers the metrics.

        Args:
            model_name: Value of the label `model_name`.
            observed: Metrics of front ends.
        """
        self.clock = time.monotonic
        self.cpu_clock = time.thread_time  # of the rendering thread
        self.last = b""
        self.kept_until = -math.inf
        self.format = TextFormat({"model_name": model_name}, UNLABELLED)
        self.registry = CollectorRegistry()
        self.engine_metrics = EngineMetrics()
        self.registry.register(self.engine_metrics)
        self.registry.register(observed)

        self.histograms = {
            field: Histogram(f"unmask_{name}", text, buckets=buckets, registry=self.registry)
            for field, (name, text, buckets) in _HISTOGRAMS.items()
        }
        self.load = Gauge("unmask_model_load_seconds", "Duration of the last model load.", registry=self.registry)
        self.failures = Counter("unmask_backend_failures", "Backend processes that exited.", registry=self.registry)
        self.backends = Gauge("unmask_backends_ready", "Backend processes that are ready.", registry=self.registry)
        self.build = Info("unmask_build", "Version, model family and device.", registry=self.registry)
        self.build.info(_VERSIONS)

    def on_loaded(self, info: EngineInfo, seconds: float) -> None:
        self.engine_metrics.max_running_requests = info.max_num_reqs
        self.engine_metrics.page_tokens, self.engine_metrics.max_adapters = info.page_size, info.max_loras
        self.load.set(seconds)
        self.build.info(
            {
                **_VERSIONS,
                "family": info.family,
                "strategy": info.strategy,
                "device": info.device,
                "dtype": info.dtype,
                "quantization": info.quantization or "none",
                "tensor_parallel": str(info.tensor_parallel_size),
                "expert_parallel": str(info.expert_parallel_size),
            }
        )

    def record_stats(self, replica: int, stats: EngineStats) -> None:
        """Records the statistics of a backend: totals and gauges replace the last ones, observations are added."""
        self.engine_metrics.current[replica] = stats
        for field, histogram in self.histograms.items():
            for value in getattr(stats, field):
                histogram.observe(value)

    def retire_engine(self, replica: int) -> None:
        self.engine_metrics.retire(replica)
        self.failures.inc()

    def text(self) -> bytes:
        """Renders all metrics, or returns the last text again.

        /metrics needs no key, so a text is kept for `KEPT_SECONDS`, and for so long that rendering takes `_RENDERING`
        of a processor. It is charged with the thread's CPU time, so that a busy machine does not repeat old text. A
        quarter of the wall time is the least that it is charged with: the event loop waits meanwhile.
        """
        if self.due():
            began, began_cpu = self.clock(), self.cpu_clock()
            self.last = self.format.write(self.registry.collect())
            now = self.clock()
            spent = max(self.cpu_clock() - began_cpu, (now - began) / 4)
            self.kept_until = now + max(KEPT_SECONDS, spent / _RENDERING)
        return self.last

    def due(self) -> bool:
        """Whether the next text is rendered anew."""
        return self.clock() >= self.kept_until

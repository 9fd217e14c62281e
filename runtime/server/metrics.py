"""Prometheus metrics (runtime.md section 5): the frontend's own observations, and the engines' figures added up."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

import runtime
from runtime.request.io import EngineInfo, EngineStats
from runtime.server.metric_labels import Named, Processes

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_HOST_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RENDERING = 0.1  # of the time, in the long run, goes into writing /metrics
_RENDERING_AT_ONCE = 0.5  # seconds that may go into it at once

# totals of EngineStats -> (metric without prefix and suffix, help)
_TOTALS = {
    "prompt_tokens": ("prompt_tokens", "Tokens of admitted prompts."),
    "generated_tokens": ("generated_tokens", "Tokens of answers."),
    "prefix_hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    "steps": ("engine_steps", "Steps of the engine loop."),
    "steps_replayed": ("engine_steps_replayed", "Steps that were recorded graphs altogether."),
    "edits": ("edits", "Filled tokens replaced by editing."),
    "remasks": ("remasks", "Filled tokens masked again."),
    "forced": ("forced_commits", "Tokens taken because no position reached the threshold."),
    "adapter_evictions": ("lora_evictions", "Adapters that made room for others on a device."),
    "preemptions": ("preemptions", "Requests preempted for want of pages."),
}
_KINDS = ("prefill", "denoise", "commit")
_REASONS = ("off", "prefill", "new", "flag", "apart", "shaped")
_EVERY_TOTAL = (*_TOTALS, *(f"forwards_{kind}" for kind in _KINDS), *(f"steps_eager_{reason}" for reason in _REASONS))
_GAUGES = {
    "pages_total": ("kv_pages", "KV pages of all engines."),
    "pages_used": ("kv_pages_used", "KV pages held by live requests."),
    "pages_cached": ("kv_pages_cached", "KV pages held by the prefix cache alone, reclaimable."),
    "graph_bytes": ("graph_memory_bytes", "Memory of the devices that recorded graphs take."),
}


class EngineFigures:
    """The engines' totals and gauges. Totals survive a backend's restart: those of the dead are kept.

    Attributes:
        live: requests of each replica that were sent to its engine and have not ended, right now.
        work: tokens that these have still to be given, as far as one can tell.
        room: how many of them an engine works on at once.
        adapted: those of each adapter; adapters: the names of all.
    """

    def __init__(self) -> None:
        self.current: dict[int, EngineStats] = {}
        self.past = EngineStats()
        self.live: Sequence[int] = ()
        self.work: Sequence[int] = ()
        self.room = 0
        self.adapted: Mapping[str, int] = {}
        self.adapters: Collection[str] = ()

    def describe(self) -> list[Metric]:
        return []

    def retire(self, replica: int) -> None:
        stats = self.current.pop(replica, None)
        if stats is not None:
            for name in _EVERY_TOTAL:
                setattr(self.past, name, getattr(self.past, name) + getattr(stats, name))

    def _sum(self, name: str) -> int:
        return sum(getattr(stats, name) for stats in self.current.values())

    def total(self, name: str) -> int:
        """Of all engines that there are and have been."""
        return int(getattr(self.past, name)) + self._sum(name)

    def usage(self) -> float:
        """Share of the KV pages that live requests hold."""
        pages = self._sum("pages_total")
        return self._sum("pages_used") / pages if pages else 0.0

    def requests(self) -> tuple[int, int]:
        """Running and waiting ones. Engines report between steps, when the requests that the step ended are gone: an
        engine that answers each request in one step would seem to have nothing to do. So they are counted here, and an
        engine only tells how many of them wait."""
        running = waiting = 0
        for replica, live in enumerate(self.live):
            told = self.current[replica].waiting if replica in self.current else 0
            wait = min(max(told, live - self.room), live)
            running, waiting = running + live - wait, waiting + wait
        return running, waiting

    def _adapters(self) -> Iterator[Metric]:
        run = GaugeMetricFamily("unmask_lora_requests_running", "Running requests of an adapter.", labels=["lora"])
        wait = GaugeMetricFamily("unmask_lora_requests_waiting", "Waiting requests of an adapter.", labels=["lora"])
        for name in sorted(self.adapters):
            live = self.adapted.get(name, 0)
            told = sum(stats.adapters_waiting.get(name, 0) for stats in self.current.values())
            run.add_metric([name], live - min(told, live))
            wait.add_metric([name], min(told, live))
        yield run
        yield wait

    def _replicas(self) -> Iterator[Metric]:
        """What tells replicas from each other."""
        every = [self.current.get(replica) for replica in range(len(self.live))]
        tokens, hits = (
            [getattr(s, name) if s else 0 for s in every] for name in ("generated_tokens", "prefix_hit_tokens")
        )
        kinds: tuple[tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], str, str, Sequence[float]], ...] = (
            (GaugeMetricFamily, "up", "Whether the replica's engine serves.", [int(s is not None) for s in every]),
            (GaugeMetricFamily, "requests", "Requests that were sent to the replica and have not ended.", self.live),
            (GaugeMetricFamily, "work_tokens", "Tokens that these still take, as far as one can tell.", self.work),
            (CounterMetricFamily, "generated_tokens", "Tokens of answers, by replica since its start.", tokens),
            (CounterMetricFamily, "prefix_hit_tokens", "Prompt tokens found in the prefix cache, likewise.", hits),
        )
        for kind, name, text, values in kinds:
            family = kind(f"unmask_replica_{name}", text, labels=["replica"])
            for replica, value in enumerate(values):
                family.add_metric([str(replica)], value)
            yield family

    def collect(self) -> Iterator[Metric]:
        running, waiting = self.requests()
        yield GaugeMetricFamily("unmask_requests_running", "Requests being prefilled or decoded.", value=running)
        yield GaugeMetricFamily("unmask_requests_waiting", "Requests that wait for room in an engine.", value=waiting)
        yield from self._adapters()
        most = self.room * len(self.live)
        text = "Requests that can run at once (--max-num-reqs of each engine)."
        yield GaugeMetricFamily("unmask_requests_running_most", text, value=most)
        yield from self._replicas()
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"unmask_{name}", text, value=self._sum(field))
        pages, used, cached = self._sum("pages_total"), self._sum("pages_used"), self._sum("pages_cached")
        yield GaugeMetricFamily("unmask_kv_pages_free", "KV pages that nothing holds.", value=pages - used - cached)
        text = "Share of the KV pages held by live requests."
        yield GaugeMetricFamily("unmask_kv_usage_ratio", text, value=self.usage())
        for field, (name, text) in _TOTALS.items():
            yield CounterMetricFamily(f"unmask_{name}", text, value=self.total(field))
        forwards = CounterMetricFamily("unmask_forwards", "Forward passes of requests, by kind.", labels=["kind"])
        for kind in _KINDS:
            forwards.add_metric([kind], self.total(f"forwards_{kind}"))
        yield forwards
        eager = CounterMetricFamily(
            "unmask_engine_steps_eager", "Steps of which something was launched anew, by reason.", labels=["reason"]
        )
        for reason in _REASONS:
            eager.add_metric([reason], self.total(f"steps_eager_{reason}"))
        yield eager


# why a connection is ended by the server; each is there from the start, so that the first one is an increase
GIVEN_UP = (
    "slow_head",
    "slow_body",
    "stalled",
    "invalid",
    "head_too_large",
    "discarded",
    "gave_way",
    "no_room",
    "memory",
)


class Metrics:
    """Everything /metrics shows, in a registry of its own. `model_name`: the label's value."""

    def __init__(self, model_name: str) -> None:
        self.last = b""
        self.rendered = 0.0
        self.credit = _RENDERING_AT_ONCE
        self.registry = CollectorRegistry()
        self.shown = Named(self.registry, model_name)
        self.figures = EngineFigures()
        self.registry.register(self.figures)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"unmask_{name}", text, buckets=buckets, registry=self.registry)

        self.requests = Counter(
            "unmask_requests",
            "HTTP requests for generation by outcome: stop, length, max_nfe, repetition, refused, timeout, aborted, "
            "error.",
            ["outcome"],
            registry=self.registry,
        )
        self.first_token = histogram("time_to_first_token_seconds", "Streams: until the first text.", _SECONDS)
        self.first_block = histogram("time_to_first_block_seconds", "Streams: until a whole block is stable.", _SECONDS)
        self.per_token = histogram(
            "time_per_output_token_seconds",
            "Duration over tokens of an answer, after the queue.",
            (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
        )
        self.end_to_end = histogram("request_seconds", "From the request's arrival to its answer's end.", _SECONDS)
        self.queue = histogram("queue_seconds", "Until the engine admitted the request.", _SECONDS)
        self.tokens_per_forward = histogram(
            "tokens_per_forward", "Tokens of an answer, its end included, over its steps.", _POWERS
        )
        self.step = histogram("step_seconds", "Duration of an engine step.", _STEP_SECONDS)
        self.device = histogram(
            "step_device_seconds", "The device's part of an engine step that sampled something.", _STEP_SECONDS
        )
        self.host = histogram("step_host_seconds", "The rest of such a step, the host's.", _HOST_SECONDS)
        self.batch = histogram("batch_size", "Requests in an engine step.", _POWERS)
        self.block_steps = histogram("steps_per_block", "Steps that a block took to end.", _POWERS)
        self.load = Gauge("unmask_model_load_seconds", "Duration of the last load of a model.", registry=self.registry)
        self.connections = Gauge("unmask_connections", "Connections of clients, open now.", registry=self.registry)
        self.connections_most = Gauge(
            "unmask_connections_most", "Connections that there may be (--max-connections).", registry=self.registry
        )
        self.given_up = Counter(
            "unmask_connections_given_up",
            "Connections that the server ended for want of something, by reason (docs/server.md).",
            ["reason"],
            registry=self.registry,
        )
        for reason in GIVEN_UP:
            self.given_up.labels(reason)
        self.failures = Counter("unmask_backend_failures", "Backend processes that ended.", registry=self.registry)
        self.backends = Gauge("unmask_backends_ready", "Backend processes that serve.", registry=self.registry)
        self.build = Info("unmask_build", "Version, and the model's family and device.", registry=self.registry)
        self.build.info({"version": runtime.__version__, "python": platform.python_version()})

    def beside(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """Tell of this process, and of those that run beside it: their pids by name, asked for every time."""
        self.registry.register(Processes(processes))

    def loaded(self, info: EngineInfo, seconds: float) -> None:
        self.figures.room = info.max_num_reqs
        self.load.set(seconds)
        self.build.info(
            {
                "version": runtime.__version__,
                "python": platform.python_version(),
                "family": info.family,
                "strategy": info.strategy,
                "device": info.device,
                "dtype": info.dtype,
                "quantization": info.quantization or "none",
                "tensor_parallel": str(info.tensor_parallel_size),
                "expert_parallel": str(info.expert_parallel_size),
            }
        )

    def engine(self, replica: int, stats: EngineStats) -> None:
        """A backend's report: totals and gauges replace its last ones, observations are added."""
        self.figures.current[replica] = stats
        for histogram, values in (
            (self.step, stats.step_seconds),
            (self.device, stats.device_seconds),
            (self.host, stats.host_seconds),
            (self.batch, stats.batch_sizes),
            (self.block_steps, stats.block_steps),
        ):
            for value in values:
                histogram.observe(value)

    def engine_gone(self, replica: int) -> None:
        self.figures.retire(replica)
        self.failures.inc()

    def text(self) -> bytes:
        """All of it. Asked for without end, which needs no key, it is the last text again that some answers get."""
        now = time.monotonic()
        self.credit = min(self.credit + (now - self.rendered) * _RENDERING, _RENDERING_AT_ONCE)
        if self.credit > 0 or not self.last:
            self.last = generate_latest(self.shown)
            self.credit -= time.monotonic() - now
        self.rendered = now
        return self.last

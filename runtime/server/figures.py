"""The engines' figures for /metrics, added up: totals and gauges that they report."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.request.engine_messages import EagerReason, EngineStats

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
_EVERY_TOTAL = (*_TOTALS, *(f"forwards_{kind}" for kind in _KINDS), *(reason.stats_field for reason in EagerReason))
_GAUGES = {
    "pages_total": ("kv_pages", "KV pages of all engines."),
    "pages_used": ("kv_pages_used", "KV pages held by live requests."),
    "pages_cached": ("kv_pages_cached", "KV pages held by the prefix cache alone, reclaimable."),
    "graph_bytes": ("graph_memory_bytes", "Memory of the devices that recorded graphs take."),
}


class EngineMetrics(Collector):
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
        self.live_by_replica: Sequence[int] = ()
        self.work_by_replica: Sequence[int] = ()
        self.max_running_requests = 0
        self.live_by_adapter: Mapping[str, int] = {}
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
        for replica, live in enumerate(self.live_by_replica):
            reported = self.current[replica].waiting if replica in self.current else 0
            wait = min(max(reported, live - self.max_running_requests), live)
            running, waiting = running + live - wait, waiting + wait
        return running, waiting

    def _adapters(self) -> Iterator[Metric]:
        run = GaugeMetricFamily("unmask_lora_requests_running", "Running requests of an adapter.", labels=["lora"])
        wait = GaugeMetricFamily("unmask_lora_requests_waiting", "Waiting requests of an adapter.", labels=["lora"])
        for name in sorted(self.adapters):
            live = self.live_by_adapter.get(name, 0)
            reported = sum(stats.adapters_waiting.get(name, 0) for stats in self.current.values())
            run.add_metric([name], live - min(reported, live))
            wait.add_metric([name], min(reported, live))
        yield run
        yield wait

    def _replicas(self) -> Iterator[Metric]:
        """What tells replicas from each other."""
        every = [self.current.get(replica) for replica in range(len(self.live_by_replica))]
        tokens, hits = (
            [getattr(s, name) if s else 0 for s in every] for name in ("generated_tokens", "prefix_hit_tokens")
        )
        kinds: tuple[tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], str, str, Sequence[float]], ...] = (
            (GaugeMetricFamily, "up", "Whether the replica's engine serves.", [int(s is not None) for s in every]),
            (
                GaugeMetricFamily,
                "requests",
                "Requests that were sent to the replica and have not ended.",
                self.live_by_replica,
            ),
            (
                GaugeMetricFamily,
                "work_tokens",
                "Tokens that these still take, as far as one can tell.",
                self.work_by_replica,
            ),
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
        max_running = self.max_running_requests * len(self.live_by_replica)
        text = "Requests that can run at once (--max-num-reqs of each engine)."
        yield GaugeMetricFamily("unmask_requests_running_most", text, value=max_running)
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
        for reason in EagerReason:
            eager.add_metric([reason.value], self.total(reason.stats_field))
        yield eager

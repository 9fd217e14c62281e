"""The operator's own metrics, served under ``/metrics``."""

import functools
from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from unmask_operator.kube.cache import Cache

_NAMESPACE = "unmask_operator"  # prefix of the names
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_MINUTES = (10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0)
_STOPPED = ("Suspended", "NoReplicas")  # reasons of Available=False that the spec requests


class Metrics(Collector):
    """The metrics of one operator process, in a registry of their own."""

    def __init__(self, cache: Cache, waiting: Callable[[], int]) -> None:
        self._cache = cache
        self._waiting = waiting
        own = self.registry = CollectorRegistry()
        counter = functools.partial(Counter, namespace=_NAMESPACE, registry=own)
        gauge = functools.partial(Gauge, namespace=_NAMESPACE, registry=own)
        histogram = functools.partial(Histogram, namespace=_NAMESPACE, registry=own)
        self.leader = gauge("leader", "1 while this process reconciles, else 0.")
        self.reconciles = counter("reconciles", "Finished reconciles by result.", ["result"])
        for result in ("ok", "error"):
            self.reconciles.labels(result)
        self.durations = histogram("reconcile_seconds", "Time of one reconcile.", buckets=_SECONDS)
        text = "Time from a pod's creation until it was first Ready."
        self.cold_starts = histogram("cold_start_seconds", text, buckets=_MINUTES)
        text = (
            "Time of each phase of a pod's start: scheduling, containers (image pull, init containers), and the phases "
            "start, download, weights and warmup of the runtime."
        )
        buckets = (1.0, 2.5, 5.0, *_MINUTES)
        self.cold_start_phases = histogram("cold_start_phase_seconds", text, ["phase"], buckets=buckets)
        self.writes = counter("writes", "Writes to children and status by verb.", ["verb"])
        text = "Reconciles, lists and watches that failed at a request, by HTTP status (0: no answer)."
        self.api_errors = counter("api_errors", text, ["status"])
        text = "Statuses that the API server refused. A minimal status replaced them."
        self.status_refusals = counter("status_refusals", text)
        text = "Watched namespaces whose last list failed. A leader reconciles nothing in one that it could never list."
        self.unlisted_namespaces = gauge("unlisted_namespaces", text)
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics computed at scrape time: resources, conditions, the queue's length, the cache's age."""
        resources = list(self._cache.resources())
        total = _family("services", "Resources in the cache.")
        total.add_metric([], len(resources))
        by_condition = _family("service_conditions", "Resources by condition.", "type", "status", "reason")
        text = "1 while a condition of a resource is True, else 0."
        each = _family("service_condition", text, "namespace", "name", "type")
        text = "1 while a resource serves nothing because it is suspended or has 0 replicas, else 0."
        stopped = _family("service_stopped", text, "namespace", "name")
        tally: Tally[tuple[str, str, str]] = Tally()
        for key, resource in resources:
            conditions = (resource.get("status") or {}).get("conditions") or ()
            for condition in conditions:
                kind, status = condition["type"], condition["status"]
                tally[kind, status, condition["reason"]] += 1
                each.add_metric([*key, kind], float(status == "True"))
            on_purpose = any(c["type"] == "Available" and c["reason"] in _STOPPED for c in conditions)
            stopped.add_metric([*key], float(on_purpose))
        for labels, count in sorted(tally.items()):
            by_condition.add_metric(list(labels), count)
        waiting = _family("queue_length", "Resources in the work queue.")
        waiting.add_metric([], self._waiting())
        age = _family("watch_age_seconds", "Time since a kind was listed or an event of it arrived.", "kind")
        for api, seconds in sorted(self._cache.ages().items()):
            age.add_metric([api.rpartition("/")[2]], seconds)
        yield from (total, by_condition, each, stopped, waiting, age)


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_NAMESPACE}_{name}", text, labels=labels)

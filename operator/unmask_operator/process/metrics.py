"""What the operator tells of itself under ``/metrics``."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from unmask_operator.client.store import Store
from unmask_operator.objects import Obj

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The figures of one operator process, in a registry of their own."""

    def __init__(self, store: Store, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.leader = Gauge(
            "unmask_operator_leader", "1 while this process reconciles, else 0.", registry=self.registry
        )
        self.reconciles = Counter(
            "unmask_operator_reconciles", "Finished reconciles by result.", ["result"], registry=self.registry
        )
        for result in ("ok", "error"):
            self.reconciles.labels(result)
        self.durations = Histogram(
            "unmask_operator_reconcile_seconds", "Time of one reconcile.", registry=self.registry, buckets=_SECONDS
        )
        self.writes = Counter(
            "unmask_operator_writes", "Writes to children and status by verb.", ["verb"], registry=self.registry
        )
        self.api_errors = Counter(
            "unmask_operator_api_errors",
            "Requests of reconciles that failed, by HTTP status (0: no answer).",
            ["status"],
            registry=self.registry,
        )
        self.registry.register(_StoreCollector(store, waiting))


class _StoreCollector(Collector):
    """Counted when scraped: services by condition, the queue's length, the age of what is known."""

    def __init__(self, store: Store, waiting: Callable[[], int]) -> None:
        self._store = store
        self._waiting = waiting

    def collect(self) -> Iterable[Metric]:
        services = [obj for _, obj in self._store.services()]
        yield GaugeMetricFamily("unmask_operator_services", "Resources known.", value=len(services))
        by_condition = GaugeMetricFamily(
            "unmask_operator_service_conditions", "Resources by condition.", labels=["type", "status", "reason"]
        )
        for labels, count in sorted(Tally(_conditions(services)).items()):
            by_condition.add_metric(list(labels), count)
        yield by_condition
        yield GaugeMetricFamily("unmask_operator_queue_length", "Resources that wait.", value=self._waiting())
        age = GaugeMetricFamily(
            "unmask_operator_watch_age_seconds", "Time since the API server last told of a kind.", labels=["kind"]
        )
        for api, seconds in sorted(self._store.ages().items()):
            age.add_metric([api.rpartition("/")[2]], seconds)
        yield age


def _conditions(services: Iterable[Obj]) -> Iterator[tuple[str, str, str]]:
    for service in services:
        for condition in (service.get("status") or {}).get("conditions") or ():
            yield condition["type"], condition["status"], condition.get("reason", "")

"""What a server's metrics tell of where they are from: the model's name on each, and figures of its processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

# The operator reads these by their bare names (autoscaler/scrape.py).
UNLABELLED = frozenset(
    {
        "unmask_requests_running",
        "unmask_requests_waiting",
        "unmask_requests_running_most",
        "unmask_kv_usage_ratio",
        "unmask_model_load_seconds",
    }
)


class ModelNameLabels(Collector):
    """All that `registry` has; every sample but those of `UNLABELLED` with the label ``model_name``."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self.registry = registry
        self.model_name = model_name

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            if metric.name not in UNLABELLED:
                metric.samples = [
                    sample._replace(labels={**sample.labels, "model_name": self.model_name})
                    for sample in metric.samples
                ]
            yield metric


class ProcessMetrics(Collector):
    """``process_*``, as clients of Prometheus have them, of several processes: the label ``process`` tells which.

    `others`: pids by name of those that run beside this one, which is "frontend".
    """

    def __init__(self, others: Callable[[], Mapping[str, int]]) -> None:
        self.others = others
        self._pid = os.getpid()
        self._one = ProcessCollector(pid=lambda: self._pid, registry=None)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, pid in {"frontend": os.getpid(), **self.others()}.items():
            self._pid = pid
            for metric in self._one.collect():  # nothing of one that has just ended
                samples = [sample._replace(labels={"process": name}) for sample in metric.samples]
                metric.samples = []
                families.setdefault(metric.name, metric).samples += samples
        yield from families.values()

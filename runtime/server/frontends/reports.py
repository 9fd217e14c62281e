"""What all frontend processes observe, added up."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from runtime.server.frontends.words import Observations
from runtime.server.metrics import RequestMetrics

_PASSING = ("gauge", "info")  # types whose samples say how it is now
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def snapshot(observed: RequestMetrics) -> Observations:
    """Returns the report of a process."""
    return Observations(
        [
            (metric.name, metric.type, metric.documentation, [(s.name, s.labels, s.value) for s in metric.samples])
            for metric in observed.collect()
        ]
    )


class Reports(Collector):
    """The last report of each process, and the totals of those that have ended: a total never becomes less."""

    def __init__(self) -> None:
        self.nothing = snapshot(RequestMetrics())  # so that every name is there from the start
        self.current: dict[int, Observations] = {}
        self.past: dict[str, Samples] = {}

    def describe(self) -> list[Metric]:
        return []

    def take(self, process: int, report: Observations) -> None:
        self.current[process] = report

    def retire(self, process: int) -> None:
        """It has ended, and its last report with it."""
        for name, kind, _, samples in self.current.pop(process, Observations([])).metrics:
            if kind not in _PASSING:
                _add(self.past.setdefault(name, {}), samples)

    def collect(self) -> Iterator[Metric]:
        heads: dict[str, tuple[str, str]] = {}
        sums: dict[str, Samples] = {}
        for name, kind, text, samples in self.nothing.metrics:
            heads[name] = kind, text
            _add(sums.setdefault(name, {}), samples)
        for report in self.current.values():
            for name, _, _, samples in report.metrics:
                _add(sums[name], samples)
        for name, past in self.past.items():
            _add(sums[name], [(sample, dict(labels), value) for (sample, labels), value in past.items()])
        for name, (kind, text) in heads.items():
            metric = Metric(name, text, kind)
            for (sample, labels), value in sums[name].items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


def _add(sums: Samples, samples: list[tuple[str, dict[str, str], float]]) -> None:
    for name, labels, value in samples:
        key = name, tuple(sorted(labels.items()))
        if name.endswith("_created"):  # when counting began
            sums[key] = min(sums.get(key, value), value)
        else:
            sums[key] = sums.get(key, 0.0) + value

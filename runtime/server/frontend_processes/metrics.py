"""Metrics of several frontend processes, through the multiprocess mode of prometheus_client.

Each process writes its values to files in a directory of the server. The parent process sums them at each scrape. A
restarted process continues with the files of the last process. So the number of files stays the same, and totals never
decrease.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from runtime.server.metrics import EngineMetrics, RequestMetrics

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # environment variable of prometheus_client
_KINDS = ("counter", "histogram", "gauge_livesum")
_FILE_BYTES = 1 << 16  # allocated in advance: a write to a mapped file without disk space kills the process
_LIVE = "unmask_frontend_live"


def use_files(index: int) -> None:
    """Writes the metrics of this process to the files of frontend process `index`.

    It must be called before any metric is created.
    """
    values.ValueClass = values.MultiProcessValue(lambda: index)  # type: ignore[no-untyped-call]


class LiveRequests:
    """Publishes the live requests of this process, for the engine metrics of the parent."""

    def __init__(self) -> None:
        labels = ["count", "key"]  # requests, work or adapters; index of the replica or name of the adapter
        self.gauge = Gauge(_LIVE, "", labels, registry=CollectorRegistry(), multiprocess_mode="livesum")

    def publish(self, requests: list[int], work: list[int], adapters: Mapping[str, int]) -> None:
        counts = {"requests": enumerate(requests), "work": enumerate(work), "adapters": adapters.items()}
        for name, values_by_key in counts.items():
            for key, value in values_by_key:
                self.gauge.labels(name, key).set(value)


class FrontendMetrics(Collector):
    """The request metrics of all frontend processes, summed.

    Attributes:
        engine_metrics: receives the live requests of all processes at each refresh.
        unused: metrics without values, by name: the files have only those that a process has used.
        found: metrics by name, as of the last refresh.
    """

    def __init__(self, directory: Path) -> None:
        """Creates the directory of the files."""
        directory.mkdir(mode=0o700)
        self.directory = directory
        self.engine_metrics = EngineMetrics()
        self.unused = {metric.name: metric for metric in RequestMetrics().collect()}
        self.files = MultiProcessCollector(None, str(directory))  # type: ignore[no-untyped-call]
        self.found: dict[str, Metric] = {}

    def attach(self, engine_metrics: EngineMetrics) -> None:
        """Sets the metrics that receive the live requests of all processes, and refreshes them at each scrape."""
        self.engine_metrics = engine_metrics
        engine_metrics.refresh = self.refresh

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a frontend process."""
        return {DIRECTORY_VARIABLE: str(self.directory)}

    def prepare(self, index: int) -> None:
        """Allocates the files of a process before its start. Raises OSError."""
        for kind in _KINDS:
            path = self.directory / f"{kind}_{index}.db"
            if not path.exists():
                unfinished = path.with_suffix(".new")
                unfinished.write_bytes(bytes(_FILE_BYTES))
                os.replace(unfinished, path)

    def retire(self, index: int) -> None:
        """Removes the gauges of a process that has exited. Its totals remain."""
        mark_process_dead(index, str(self.directory))  # type: ignore[no-untyped-call]

    def refresh(self) -> None:
        """Reads the files, and updates the live requests of the engine metrics."""
        collected: Iterable[Metric] = self.files.collect()  # type: ignore[no-untyped-call]
        self.found = {metric.name: metric for metric in collected}
        engine, live = self.engine_metrics, Counter[tuple[str, str]]()
        for sample in self.found[_LIVE].samples if _LIVE in self.found else ():
            live[sample.labels["count"], sample.labels["key"]] = int(sample.value)
        replicas = range(len(engine.live_by_replica))
        engine.live_by_replica = [live["requests", str(replica)] for replica in replicas]
        engine.work_by_replica = [live["work", str(replica)] for replica in replicas]
        engine.live_by_adapter = {key: count for (name, key), count in live.items() if name == "adapters"}

    def live(self) -> int:
        """Returns the number of live engine requests."""
        self.refresh()
        return sum(self.engine_metrics.live_by_replica)

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics as of the last refresh. Each scrape of the engine metrics causes a refresh."""
        return (self.found.get(name, unused) for name, unused in self.unused.items())

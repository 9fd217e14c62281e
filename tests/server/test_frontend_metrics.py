"""Tests of the sums of the metrics of several frontend processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.server.frontend_processes.metrics import FrontendMetrics
from runtime.server.metrics import Metrics, RequestMetrics
from tests.server.harness import ROOT

OBSERVE = """
import json, sys
from runtime.server.frontend_processes.metrics import LiveRequests, use_files

use_files(int(sys.argv[1]))
from runtime.server.metrics import RequestMetrics

observed = RequestMetrics()
for _ in range(int(sys.argv[2])):
    observed.requests.labels("stop").inc()
    observed.end_to_end.observe(0.2)
observed.connections.set(int(sys.argv[3]))
observed.max_connections.set(10)
LiveRequests().publish([int(sys.argv[3])], [40], {"": 1, "an adapter": 1})
"""


class Server:
    """A parent process, and frontend processes that record metrics and exit."""

    def __init__(self, directory: Path) -> None:
        self.frontends = FrontendMetrics(directory / "metrics")
        self.metrics = Metrics("m", self.frontends)
        self.metrics.cpu_clock = self.metrics.clock = lambda: 0.0
        engine = self.metrics.engine_metrics
        engine.live_by_replica, engine.work_by_replica, engine.adapters = [0], [0], ["an adapter"]
        engine.max_running_requests = 100
        self.frontends.attach(engine)

    def run(self, index: int, requests: int, connections: int) -> None:
        self.frontends.prepare(index)
        command = [sys.executable, "-c", OBSERVE, str(index), str(requests), str(connections)]
        subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT), **self.frontends.environment()}, check=True)

    def values(self) -> dict[str, float]:
        text = self.metrics.text().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {
            sample.name + json.dumps({k: v for k, v in sample.labels.items() if k != "model_name"}): sample.value
            for sample in samples
        }


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_values_of_all_processes_are_added_up(server: Server) -> None:
    server.run(0, requests=3, connections=5)
    server.run(1, requests=4, connections=2)
    found = server.values()
    assert found['unmask_requests_total{"outcome": "stop"}'] == 7
    assert found["unmask_request_seconds_count{}"] == 7
    assert found['unmask_request_seconds_bucket{"le": "0.1"}'] == 0
    assert found['unmask_request_seconds_bucket{"le": "0.25"}'] == 7
    assert found["unmask_connections{}"] == 7
    assert found["unmask_max_connections{}"] == found["unmask_connections_most{}"] == 20
    assert found["unmask_requests_running{}"] == 7
    assert found['unmask_replica_work_tokens{"replica": "0"}'] == 80
    assert found['unmask_lora_requests_running{"lora": "an adapter"}'] == 2


def test_totals_continue_and_gauges_end_with_their_process(server: Server) -> None:
    server.run(0, requests=3, connections=5)
    server.run(1, requests=4, connections=2)
    server.frontends.retire(0)
    found = server.values()
    assert found['unmask_requests_total{"outcome": "stop"}'] == 7
    assert found["unmask_connections{}"] == found["unmask_requests_running{}"] == 2
    files = sorted(path.name for path in server.frontends.directory.iterdir())
    server.run(0, requests=1, connections=1)  # the process that replaces it
    found = server.values()
    assert found['unmask_requests_total{"outcome": "stop"}'] == 8
    assert found["unmask_connections{}"] == 3
    assert {*files, "gauge_livesum_0.db"} == {path.name for path in server.frontends.directory.iterdir()}


def test_all_metrics_exist_before_any_process_starts(server: Server) -> None:
    observed = RequestMetrics()
    single = Metrics("m", observed)
    single.engine_metrics.live_by_replica, single.engine_metrics.work_by_replica = [0], [0]
    single.engine_metrics.adapters = ["an adapter"]
    samples = [s for f in text_string_to_metric_families(single.text().decode()) for s in f.samples]
    names = {s.name + json.dumps({k: v for k, v in s.labels.items() if k != "model_name"}) for s in samples}
    assert server.values().keys() == names
    server.frontends.prepare(0)  # creates files without values
    assert server.values().keys() == names

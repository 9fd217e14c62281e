"""Tests of metrics: their labels, the cost of rendering them, and the sums of several frontend processes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from runtime.request.engine_messages import EngineStats
from runtime.server.frontend_processes.metrics import FrontendMetrics
from runtime.server.metrics import UNLABELLED, Metrics, RequestMetrics
from tests.server.harness import FAKE, ROOT, serving
from tests.wait import wait_until
from unmask_operator.api.autoscaling import EXTRA_GAUGES, GAUGES


def test_only_samples_that_the_operator_reads_lack_the_models_name() -> None:
    assert {gauge for gauge, _ in (GAUGES | EXTRA_GAUGES).values()} == UNLABELLED
    observed = RequestMetrics()
    metrics = Metrics('a "strange" name', observed)
    metrics.record_stats(0, EngineStats(step_seconds=[0.1]))
    observed.requests.labels("stop").inc()
    samples = [s for family in text_string_to_metric_families(metrics.text().decode()) for s in family.samples]
    assert {s.name for s in samples if not s.labels} == UNLABELLED
    assert {s.labels["model_name"] for s in samples if s.labels} == {'a "strange" name'}
    (stopped,) = (s for s in samples if s.name == "unmask_requests_total" and s.labels["outcome"] == "stop")
    assert stopped.value == 1


def test_a_sample_is_labeled_once_however_often_it_is_rendered() -> None:
    metrics = Metrics("m", RequestMetrics())
    metrics.cpu_clock = lambda: 0.0
    first = metrics.text()
    assert metrics.text().count(b"model_name") == first.count(b"model_name")


class Clocks:
    """A clock, and a CPU clock by which each rendering takes a second."""

    def __init__(self) -> None:
        self.now = self.used = 0.0

    def cpu(self) -> float:
        self.used += 1.0  # the clock is read before and after each rendering
        return self.used


def test_rendering_uses_a_tenth_of_a_processor_and_no_more() -> None:
    clocks, observed = Clocks(), RequestMetrics()
    metrics = Metrics("m", observed)
    metrics.clock, metrics.cpu_clock = lambda: clocks.now, clocks.cpu
    first = metrics.text()
    observed.requests.labels("stop").inc()
    clocks.now += 5  # a credit of 0.5 s, less 1 s of rendering, plus 0.5 s for the 5 s
    assert not metrics.due()
    assert metrics.text() is first
    clocks.now += 0.1
    assert metrics.due()
    assert b'outcome="stop"' in metrics.text()


@pytest.mark.parametrize(("seconds", "rendered_again"), [(3.0, True), (4.0, False)])
def test_time_in_which_rendering_waits_is_charged_at_a_quarter(seconds: float, rendered_again: bool) -> None:
    """A credit of 0.5 s lasts for 3.3 s of waiting, during which a tenth of the time is credited."""
    now, observed = 0.0, RequestMetrics()
    metrics = Metrics("m", observed)
    metrics.clock = lambda: now

    class Waits:
        def collect(self) -> list[Metric]:
            nonlocal now
            now += seconds
            return []

    metrics.registry.register(Waits())
    metrics.text()
    observed.requests.labels("stop").inc()
    assert (b'outcome="stop"' in metrics.text()) is rendered_again


@pytest.mark.parametrize("replicas", [2])
def test_processes_have_labels_and_a_new_one_has_its_own_start_time(replicas: int) -> None:
    args = ("--data-parallel-size", str(replicas), "--served-model-name", "mine")
    with serving(*args, module=FAKE) as server:
        server.until_metric("unmask_backends_ready", replicas)
        with server.client() as client:
            text = client.get("/metrics").text
        assert 'unmask_backends_ready{model_name="mine"} 2.0' in text
        found = server.metrics()

        def of(what: str, name: str) -> float:
            return found[f'process_{what}{{process="{name}"}}']

        frontend = psutil.Process(server.process.pid)
        assert of("start_time_seconds", "frontend") == pytest.approx(frontend.create_time(), abs=2)
        assert of("resident_memory_bytes", "frontend") == pytest.approx(frontend.memory_info().rss, rel=0.2)
        assert of("cpu_seconds_total", "frontend") > 0
        assert 5 < of("open_fds", "frontend") < of("max_fds", "frontend")
        started = sorted(process.create_time() for process in server.backends())
        reported = sorted(of("start_time_seconds", f"backend-{n}") for n in range(replicas))
        assert reported == pytest.approx(started, abs=2)

        wait_until(lambda: time.time() > started[-1] + 3)  # start times may be rounded to seconds
        before = of("start_time_seconds", "backend-0"), of("start_time_seconds", "backend-1")
        server.backends()[0].kill()
        server.until_metric("unmask_backend_failures_total", 1)
        server.until_metric("unmask_backends_ready", replicas)
        found = server.metrics()
        after = of("start_time_seconds", "backend-0"), of("start_time_seconds", "backend-1")
        assert sum(new > old + 1 for new, old in zip(after, before, strict=True)) == 1


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
    assert found["unmask_max_connections{}"] == 20
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

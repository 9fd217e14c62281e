"""The model's name on every sample but those that the operator reads, and what the server's processes use."""

import time

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.request.io import EngineStats
from runtime.server.metric_labels import UNLABELLED
from runtime.server.metrics import Metrics
from runtime.server.observed import Observed
from tests.server.harness import FAKE, ServerProcess, wait_for
from unmask_operator.api.autoscaling import BESIDES, GAUGES


def test_what_the_operator_reads_is_bare_and_all_else_has_the_models_name() -> None:
    assert {gauge for gauge, _ in (GAUGES | BESIDES).values()} == UNLABELLED
    observed = Observed()
    metrics = Metrics('a "strange" name', observed)
    metrics.engine(0, EngineStats(step_seconds=[0.1]))
    observed.requests.labels("stop").inc()
    samples = [s for family in text_string_to_metric_families(metrics.text().decode()) for s in family.samples]
    assert {s.name for s in samples if not s.labels} == UNLABELLED
    assert {s.labels["model_name"] for s in samples if s.labels} == {'a "strange" name'}
    (stopped,) = (s for s in samples if s.name == "unmask_requests_total" and s.labels["outcome"] == "stop")
    assert stopped.value == 1


def test_a_sample_is_labelled_once_however_often_it_is_asked_for() -> None:
    metrics = Metrics("m", Observed())
    first = metrics.text()
    metrics.credit = 1.0
    assert metrics.text().count(b"model_name") == first.count(b"model_name")


@pytest.mark.parametrize("replicas", [2])
def test_processes_are_told_apart_and_one_that_is_new_begins_anew(replicas: int) -> None:
    server = ServerProcess("--data-parallel-size", str(replicas), "--served-model-name", "mine", module=FAKE)
    try:
        server.until_ready()
        wait_for(lambda: server.metrics()["unmask_backends_ready"] == replicas, 20)
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
        told = sorted(of("start_time_seconds", f"backend-{n}") for n in range(replicas))
        assert told == pytest.approx(started, abs=2)

        time.sleep(2.5)  # start times are whole seconds at worst
        before = of("start_time_seconds", "backend-0"), of("start_time_seconds", "backend-1")
        server.backends()[0].kill()
        wait_for(lambda: server.metrics()["unmask_backend_failures_total"] == 1, 20)
        wait_for(lambda: server.metrics()["unmask_backends_ready"] == replicas, 20)
        found = server.metrics()
        after = of("start_time_seconds", "backend-0"), of("start_time_seconds", "backend-1")
        assert sum(new > old + 1 for new, old in zip(after, before, strict=True)) == 1
    finally:
        server.stop()

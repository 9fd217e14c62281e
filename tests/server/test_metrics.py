"""Tests of metrics: their labels, the cost of rendering them, and the sums of several frontend processes."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.core import Metric, Sample
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from runtime.request.engine_messages import EngineStats
from runtime.server.frontend_processes.metrics import FrontendMetrics
from runtime.server.metrics import PROCESS_SECONDS, UNLABELLED, Metrics, ProcessMetrics, RequestMetrics
from tests.layout.pages import code
from tests.request.test_sampling_params import INFO
from tests.server.harness import FAKE, ROOT, serving
from tests.wait import wait_until
from unmask_operator.api.autoscaling import EXTRA_GAUGES, GAUGES
from unmask_operator.render.route import ENGINE_LABEL


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


class Labeled(Collector):
    """The metrics of a server for the library's writer, with the label of the model."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for metric in self.metrics.registry.collect():
            if metric.name not in UNLABELLED:
                metric.samples = [s._replace(labels={**s.labels, "model_name": "m"}) for s in metric.samples]
            yield metric


def test_the_text_is_that_of_the_library() -> None:
    observed = RequestMetrics()
    metrics = Metrics("m", observed)
    metrics.cpu_clock = metrics.clock = lambda: 0.0
    metrics.registry.register(OddMetrics())
    assert metrics.text() == generate_latest(Labeled(metrics))
    for adapter in ('an "odd"\\ name\n', "b"):
        metrics.kept_until = 0.0
        metrics.engine_metrics.live_by_replica, metrics.engine_metrics.work_by_replica = [1], [2]
        metrics.engine_metrics.adapters = [adapter]
        observed.requests.labels("stop").inc()
        observed.end_to_end.observe(0.2)
        metrics.on_loaded(INFO, 2.5)
        text = metrics.text()
        assert text == generate_latest(Labeled(metrics))
    assert b'lora="b"' in text
    assert b'odd"' not in text


class OddMetrics(Collector):
    def collect(self) -> Iterator[Metric]:
        odd = Metric("odd", "A help of two\nlines and a \\.", "unknown")
        for value in (0, 1e300, math.inf, -math.inf, math.nan, 12345678.9):
            odd.add_sample("odd", {"value": str(value)}, value)
        yield odd


@pytest.mark.parametrize(
    ("waited", "cpu", "kept"), [(0.0, 0.001, 0.2), (0.0, 0.1, 1.0), (0.4, 0.02, 1.0)],
    ids=["a short rendering", "a tenth of a processor", "a quarter of the wall time"],
)  # fmt: skip
def test_a_text_is_kept_so_that_scrapers_take_little_time(waited: float, cpu: float, kept: float) -> None:
    now = used = 0.0
    observed = RequestMetrics()
    metrics = Metrics("m", observed)
    metrics.clock, metrics.cpu_clock = lambda: now, lambda: used

    class Slow(Collector):
        def collect(self) -> Iterator[Metric]:
            nonlocal now, used
            now, used = now + waited, used + cpu
            return iter(())

    metrics.registry.register(Slow())
    first = metrics.text()
    observed.requests.labels("stop").inc()
    now += kept - 0.01
    assert metrics.text() is first
    now += 0.02
    assert b'outcome="stop"' in metrics.text()


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


def test_a_new_process_is_found_at_the_next_reading() -> None:
    others: dict[str, int] = {}
    metrics = ProcessMetrics(lambda: others)

    def names() -> set[str]:
        return {sample.labels["process"] for metric in metrics.collect() for sample in metric.samples}

    assert names() == {"frontend"}
    others["backend-0"] = os.getpid()
    assert names() == {"frontend"}  # reading processes takes time
    metrics.read_at -= PROCESS_SECONDS
    assert names() == {"frontend", "backend-0"}


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
        self.metrics.cpu_clock = lambda: 0.0
        engine = self.metrics.engine_metrics
        engine.live_by_replica, engine.work_by_replica, engine.adapters = [0], [0], ["an adapter"]
        engine.max_running_requests = 100
        self.frontends.attach(engine)

    def run(self, index: int, requests: int, connections: int) -> None:
        self.frontends.prepare(index)
        command = [sys.executable, "-c", OBSERVE, str(index), str(requests), str(connections)]
        subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT), **self.frontends.environment()}, check=True)

    def values(self) -> dict[str, float]:
        self.metrics.kept_until = 0.0
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


PICKED = ("unmask_requests_waiting", "unmask_requests_running", "unmask_kv_usage_ratio", "unmask_kv_pages",
          "unmask_kv_page_tokens", "unmask_lora_requests_info")  # fmt: skip


def test_the_documented_configuration_of_a_picker_names_these_values() -> None:
    documents = [yaml.safe_load(block) for block in code("docs/operations/gateway.md", "yaml") if "llm-d.ai" in block]
    (plugins,) = ({one["type"]: one.get("parameters") for one in doc["plugins"]} for doc in documents)
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    assert sorted(name for field, name in engine.items() if field.endswith("Spec")) == sorted(PICKED)
    assert plugins["core-metrics-extractor"]["defaultEngine"] == engine["name"] == ENGINE_LABEL["llm-d.ai/engine-type"]


@pytest.mark.parametrize("adapters", [[], ["a"], ["c", "a", "b"]])
def test_an_endpoint_picker_reads_one_series_of_each_value(adapters: list[str]) -> None:
    """It takes the newest of several series of a name and adds none up."""
    metrics = Metrics("m", RequestMetrics())
    engine = metrics.engine_metrics
    engine.page_tokens, engine.max_adapters, engine.max_running_requests = 32, 2 if adapters else 0, 8
    engine.live_by_replica, engine.work_by_replica, engine.adapters = [2, 2], [0, 0], adapters

    def read(live: dict[str, int], waiting: dict[str, int]) -> dict[str, Sample]:
        engine.live_by_adapter, metrics.kept_until = live, 0.0
        for replica in range(2):
            metrics.record_stats(
                replica, EngineStats(pages_total=50, pages_used=20, waiting=1, adapters_waiting=waiting)
            )
        families = text_string_to_metric_families(metrics.text().decode())
        samples = [sample for family in families for sample in family.samples if sample.name in PICKED]
        assert len({sample.name for sample in samples}) == len(samples)
        return {sample.name: sample for sample in samples}

    found = read({"a": 2, "c": 3}, {"c": 1})
    values = [found[name].value for name in PICKED[:5]]
    assert values == [2, 2, 0.4, 100, 32]
    assert (PICKED[5] in found) == bool(adapters)
    if not adapters:
        return
    info, others = found[PICKED[5]].labels, len(adapters) > 1
    assert (info["max_lora"], info["waiting_lora_adapters"]) == ("2", "c" if others else "")
    assert info["running_lora_adapters"] == ("a,c" if others else "a")
    changed = read({"a": 2, "c": 3}, {"c": 1})[PICKED[5]].value
    assert changed == found[PICKED[5]].value, "nothing has changed"
    later = read({"a": 0}, {})[PICKED[5]]
    assert (later.labels["running_lora_adapters"], later.labels["waiting_lora_adapters"]) == ("", "")
    assert later.value >= changed

"""Tests of traces that a collector on the loopback receives from the real exporter of a real server."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from runtime.server.middleware import tracing
from tests.server.harness import serving
from tests.wait import wait_until

pytestmark = pytest.mark.processes

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 8}
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Collector(ThreadingHTTPServer):
    """Records every span that it receives, and the resource that sent it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        received = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        for resource in received.resource_spans:
            self.server.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def attributes(of: Any) -> dict[str, Any]:
    def value_of(value: Any) -> Any:
        kind = value.WhichOneof("value")
        found = getattr(value, kind)
        return [value_of(item) for item in found.values] if kind == "array_value" else found

    return {pair.key: value_of(pair.value) for pair in of.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        yield collector
        collector.shutdown()


def environment(collector: Collector, **more: str) -> dict[str, str]:
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    return {VARIABLES[0]: endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100", "NO_PROXY": "127.0.0.1", **more}


def test_each_request_has_a_span_below_that_of_its_caller(checkpoint: Any) -> None:
    arguments = ("--model", str(checkpoint), "--served-model-name", "mine", "--api-key", "a-key-of-these-tests")
    with collecting() as collector, serving(*arguments, env=environment(collector)) as server:
        server.headers = {"Authorization": "Bearer a-key-of-these-tests"}
        with server.client() as client:
            caller = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine-1"}
            answer = client.post(CHAT, json=BODY, headers=caller).json()
            assert client.post(CHAT, json={**BODY, "temperature": -1}).status_code == 400
            assert client.post(CHAT, json=BODY, headers={"Authorization": "Bearer no"}).status_code == 401
            streamed = {"prompt": "ab" * 40, "max_tokens": 8, "stream": True, "ignore_eos": True}
            assert "final" in client.post("/generate", json=streamed).text
            assert client.get("/metrics").status_code == 200
        wait_until(lambda: len(collector.spans) == 9)
    assert len(collector.spans) == 9  # three requests, and three phases for each of two
    assert all("secret" not in str(span) for span in collector.spans)
    complete, refused = sorted(collector.named("chat mine"), key=lambda span: span.start_time_unix_nano)
    (stream,) = collector.named("text_completion mine")
    assert (complete.trace_id.hex(), complete.parent_span_id.hex()) == (TRACE, PARENT)
    assert stream.trace_id.hex() != TRACE
    assert not stream.parent_span_id
    usage, received = answer["usage"], attributes(complete)
    assert received["gen_ai.response.id"] == answer["id"]
    assert received["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert received["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert received["gen_ai.response.finish_reasons"] == [answer["choices"][0]["finish_reason"]]
    assert received["unmask.forwards"] >= 1
    assert received["http.route"] == CHAT
    assert received["unmask.request_id"] == "mine-1"
    assert attributes(refused)["error.type"] == "400"
    assert attributes(stream)["gen_ai.response.time_to_first_chunk"] > 0
    for span in (complete, stream):
        phases = {child.name: child for child in collector.spans if child.parent_span_id == span.span_id}
        queue, prefill, denoise = (phases[name] for name in ("queue", "prefill", "denoise"))
        assert span.start_time_unix_nano <= queue.start_time_unix_nano
        assert queue.end_time_unix_nano == prefill.start_time_unix_nano
        assert prefill.end_time_unix_nano == denoise.start_time_unix_nano
        assert prefill.start_time_unix_nano < prefill.end_time_unix_nano
        assert denoise.start_time_unix_nano < denoise.end_time_unix_nano == span.end_time_unix_nano
    assert {resource["service.name"] for resource in collector.resources} == {"unmask"}


@pytest.mark.matrix
def test_the_standard_variables_control_sampling_and_the_end_sends_pending_spans(checkpoint: Any) -> None:
    more = {"OTEL_TRACES_SAMPLER": "parentbased_always_off", "OTEL_SERVICE_NAME": "ours"}
    with collecting() as collector:
        later = environment(collector, **more, OTEL_BSP_SCHEDULE_DELAY="3600000")
        with serving("--model", str(checkpoint), env=later) as server:
            with server.client() as client:
                for headers in ({}, {"traceparent": f"00-{TRACE}-{PARENT}-01"}):
                    client.post(CHAT, json=BODY, headers=headers).raise_for_status()
            assert not collector.spans
            server.process.terminate()
            assert server.wait() == 0
            assert len(collector.spans) == 4
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert {resource["service.name"] for resource in collector.resources} == {"ours"}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_missing_extra_is_named_in_one_log_line(
    variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert tracing.start() is None
    (line,) = caplog.records
    assert variable in line.getMessage()
    assert "unmask[otel]" in line.getMessage()


def test_an_unsupported_protocol_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(VARIABLES[0], "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert tracing.start() is None
    assert "protocol grpc is not supported" in caplog.text


@pytest.mark.parametrize("more", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_nothing_is_imported_where_traces_are_off(more: dict[str, str]) -> None:
    program = (
        "import sys; from runtime.server import http_server; from runtime.server.middleware import tracing\n"
        "assert tracing.start() is None\n"
        "assert not [n for n in sys.modules if n.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))]"
    )
    enabled = {VARIABLES[0]: "http://127.0.0.1:9"} if more else {}
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ".", **enabled, **more})

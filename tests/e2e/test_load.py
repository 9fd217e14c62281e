"""Tests of the load program: it reports every kind of failed request, and never repeats a request."""

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from e2e.cluster import binaries
from e2e.cluster.config import environment
from e2e.cluster.process import free_ports
from tests.wait import TIMEOUT, wait_until

COMPLETE = b'{"choices": [{"finish_reason": "stop"}]}'
STREAM = b'data: {"choices": [{"finish_reason": null}]}\n\ndata: ' + COMPLETE + b"\n\ndata: [DONE]\n\n"
LONG = "10m"  # timeout of a request that even a slow machine does not reach
EACH = 3  # minimum number of requests per kind: streamed, not streamed, with keep-alive, on a new connection


class Answers(BaseHTTPRequestHandler):
    """Responds to requests in the way that the server's `manner` selects."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        server: Any = self.server
        server.connections.append(self.client_address)
        super().setup()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Any = self.server
        server.asked.append(asked)
        manner, streamed = server.manner, asked["stream"]
        if manner == "silent":
            server.ended.wait()
        if manner in ("silent", "closed"):
            self.close_connection = True
            return
        self.send_response(429 if manner == "refusing" else 200)
        body = STREAM if streamed else COMPLETE
        if manner == "unfinished":
            body = body.replace(b"[DONE]", b"{}") if streamed else body.replace(b"stop", b"")
        if manner == "failing":
            body = b'data: {"error": {"message": "gone"}}\n\n' if streamed else b'{"error": {"message": "gone"}}'
        if streamed:
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n" % (len(body), body) + (b"" if manner == "broken" else b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(body) + (manner == "broken")))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = manner == "broken"

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def server(manner: str) -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as it:
        it.manner, it.asked, it.connections, it.ended = manner, [], [], Event()  # type: ignore[attr-defined]
        Thread(target=it.serve_forever, args=(0.05,), daemon=True).start()
        yield it
        it.ended.set()  # type: ignore[attr-defined]
        it.shutdown()


def run(port: int, *, timeout: str = LONG) -> dict[str, Any]:
    """Runs the load program with four clients until each kind of request was sent EACH times. Returns its report."""
    program: Path = binaries.build(["pod"], environment())["pod"]
    (listen,) = free_ports(1)
    report = f"http://127.0.0.1:{listen}"
    options = ["-clients", "4", "-pause", "20ms", "-timeout", timeout, "-listen", f"127.0.0.1:{listen}"]
    process = subprocess.Popen([program, "load", *options, f"http://127.0.0.1:{port}/v1", "some-model"])
    transport = httpx.HTTPTransport(retries=8)
    try:
        with httpx.Client(transport=transport, trust_env=False, timeout=TIMEOUT) as client:
            wait_until(lambda: enough(client.get(report).json()), "requests of each kind and client")
            final = client.post(f"{report}/stop").json()
            assert client.get(report).json()["requests"] == final["requests"]
        return final
    finally:
        process.terminate()
        process.wait()


def enough(report: dict[str, Any]) -> bool:
    """Returns whether there were EACH requests of each kind, and a response per client unless all requests failed."""
    return min(kinds(report)) >= EACH and (report["fewest"] >= 1 or report["failed"] == report["requests"])


def kinds(report: dict[str, Any]) -> tuple[int, int, int, int]:
    """Returns the number of requests of each kind: streamed, not streamed, with keep-alive, without."""
    total, streamed, keep_alive = report["requests"], report["streamed"], report["keep_alive"]
    return streamed, total - streamed, keep_alive, total - keep_alive


def test_complete_answers_are_no_failures() -> None:
    with server("good") as it:
        report = run(it.server_port)
    assert (report["failed"], report["failures"], report["in_flight"]) == (0, [], 0)
    assert report["requests"] == len(it.asked)
    assert report["streamed"] == sum(asked["stream"] for asked in it.asked)
    assert report["connections"] == len(it.connections)
    assert report["connections"] - (report["requests"] - report["keep_alive"]) in (1, 2)  # two clients use keep-alive
    assert 0 < report["latency"]["p50"] <= report["latency"]["max"]
    assert 1 <= report["fewest"] <= report["requests"] // 4
    assert {asked["max_tokens"] for asked in it.asked} == {32}
    assert {asked["model"] for asked in it.asked} == {"some-model"}


@pytest.mark.parametrize(
    ("manner", "causes"),
    [
        ("refusing", ["429"]),
        ("broken", ["the answer broke off: unexpected EOF", "the stream broke off: unexpected EOF"]),
        ("unfinished", ["no finished choice", "the stream ended without"]),
        ("failing", ["no finished choice", "an error in the stream"]),
        ("closed", ["EOF"]),
        ("silent", ["Client.Timeout"]),
    ],
)
def test_every_failure_is_reported_and_no_request_is_repeated(manner: str, causes: list[str]) -> None:
    with server(manner) as it:
        report = run(it.server_port, timeout="2s" if manner == "silent" else LONG)
    assert report["requests"] == report["failed"] == len(it.asked)
    assert report["fewest"] == 0  # counts answers, not failures
    for cause in causes:
        assert any(cause in one["cause"] for one in report["failures"]), (cause, report["failures"][:4])
    assert {one["streamed"] for one in report["failures"]} == {True, False}
    assert {one["keep_alive"] for one in report["failures"]} == {True, False}


def test_a_refused_connection_is_a_failure() -> None:
    with socket.socket() as nobody:  # bound to a port, but not listening
        nobody.bind(("127.0.0.1", 0))
        report = run(nobody.getsockname()[1])
    assert report["requests"] == report["failed"]
    assert "connection refused" in report["failures"][0]["cause"]

"""Tests of the log: its lines of requests and of the load, and text that must not be in it."""

import asyncio
import json
import logging
import signal
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from runtime.config import ServerConfig
from runtime.request.engine_messages import EngineStats
from runtime.server import logs
from runtime.server.metrics import EngineMetrics, StatsLogger
from runtime.server.middleware import request_middleware
from runtime.server.middleware.auth import ApiKeys
from tests.server.harness import FAKE, serving
from tests.wait import wait_until

CHAT = "/v1/chat/completions"


def lines(log: str, logger: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line for line in entries if line["logger"] == logger]


def test_each_answered_request_has_a_log_line(checkpoint: Any) -> None:
    secret = "unheard-of-words"
    body = {"messages": [{"role": "user", "content": secret}], "max_tokens": 8}
    with serving("--model", str(checkpoint), "--log-format", "json") as server, server.client() as client:
        answer = client.post(CHAT, json=body).json()
        assert client.post(CHAT, json={**body, "stream": True, "n": 2}).status_code == 200
        assert client.post("/v1/completions", json={"prompt": ["a", "bc"], "max_tokens": 4}).status_code == 200
        for _ in range(30):
            assert client.post(CHAT, json={**body, "temperature": -1}).status_code == 400
        assert client.get("/ready").status_code == 200
        assert client.post("/v1/completions", json={"prompt": "last", "max_tokens": 4}).status_code == 200
        wait_until(lambda: len(lines(server.log, "unmask.access")) == 4)  # all earlier lines are written by then
        entries, refused = lines(server.log, "unmask.access"), lines(server.log, "unmask.refused")
        assert secret not in server.log
        assert "open to the network" not in server.log  # it listens on the loopback
    one, streamed, several, _ = entries
    usage = answer["usage"]
    assert one["id"] == answer["id"]
    assert (one["path"], one["status"]) == (CHAT, 200)
    assert (one["prompt_tokens"], one["tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert one["forwards"] >= 1
    assert one["seconds"] > 0
    assert one["ended_by"] == [answer["choices"][0]["finish_reason"]]
    assert streamed["prompt_tokens"] == usage["prompt_tokens"]
    assert several["prompt_tokens"] == 3
    assert len(refused) == 10  # of thirty: the log limits lines of refused requests
    assert refused[0]["reason"].startswith("temperature")


def post(server: Any, stream: bool) -> socket.socket:
    """Sends a request whose answer has one token and does not end."""
    data = json.dumps({"prompt": "x", "max_tokens": 9, "cache_salt": "endless", "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection: socket.socket = server.connect(head.encode() + data)
    return connection


@pytest.mark.parametrize("processes", [1, 2])
def test_a_request_that_its_client_aborts_has_a_log_line_with_its_tokens(checkpoint: Any, processes: int) -> None:
    flags = ("--log-format", "json", "--frontend-processes", str(processes))
    with serving("--model", str(checkpoint), *flags, module=FAKE) as server:
        for stream in (False, True):
            connection = post(server, stream)
            server.until_metric("unmask_generated_tokens_total", 1 + stream)
            if stream:
                assert connection.recv(64)
            connection.close()
            server.until_idle()
        wait_until(lambda: len(lines(server.log, "unmask.access")) == 2)
        assert not lines(server.log, "unmask.refused")
        for entry, status in zip(lines(server.log, "unmask.access"), (499, 200), strict=True):
            assert entry["message"].startswith("aborted by the client: POST /v1/completions")
            assert (entry["status"], entry["tokens"], entry["forwards"]) == (status, 1, 1)
            assert entry["ended_by"] == ["aborted"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_request_has_a_log_line_with_its_tokens(checkpoint: Any, stream: bool) -> None:
    body = {"prompt": "x", "max_tokens": 9, "n": 2, "cache_salt": "fail", "stream": stream}
    with serving("--model", str(checkpoint), "--log-format", "json", module=FAKE) as server, server.client() as client:
        client.post("/v1/completions", json=body)
        (entry,) = wait_until(lambda: lines(server.log, "unmask.access"))
        server.until_metric("unmask_generated_tokens_total", 2)
    assert (entry["tokens"], entry["forwards"], entry["ended_by"]) == (2, 2, ["error"])


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_engine_dies_has_a_log_line_with_its_tokens(
    checkpoint: Any, stream: bool, processes: int
) -> None:
    flags = ("--log-format", "json", "--frontend-processes", str(processes))
    with serving("--model", str(checkpoint), *flags, module=FAKE) as server, server.client() as client:
        connection = post(server, stream)
        server.until_metric("unmask_generated_tokens_total", 1)
        client.post("/v1/completions", json={"prompt": "x", "cache_salt": "exit"})
        logger = "unmask.access" if stream else "unmask.refused"
        (entry, *_) = wait_until(lambda: [line for line in lines(server.log, logger) if line.get("tokens")])
        connection.close()
    assert (entry["forwards"], entry["ended_by"]) == (1, ["error"])


def test_the_log_and_the_metrics_count_the_same_tokens_and_forwards(checkpoint: Any) -> None:
    """However an answer ends. After a stop string or an abort, the engine may finish a step that the client misses."""
    slow = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "decoding": {"accept_threshold": 1.0}}
    generated, forwards = "unmask_generated_tokens_total", 'unmask_forwards_total{kind="denoise"}'
    flags = ("--log-format", "json", "--request-timeout", "1")
    with serving("--model", str(checkpoint), *flags) as server, server.client() as client:
        tries = list[dict[str, Any]]()  # until --request-timeout, on a busy machine, does not end one
        while not (tries and "choices" in tries[-1]):
            tries.append(client.post("/v1/completions", json={**slow, "max_tokens": 30}).json())
        text = tries[-1]["choices"][0]["text"]
        answered: list[dict[str, Any]] = [
            {"prompt": ["a", "bc"], "n": 2, "max_tokens": 9},
            {"prompt": "abc", "suffix": "de", "max_tokens": 4},
            {**slow, "stop": text[20:23]},
            {**slow, "max_nfe": 20},
            slow,  # --request-timeout may end it
            *({"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": most, "stream": False} for most in (4, 0)),
        ]
        for stream in (False, True):
            for body in answered:
                assert client.post("/v1/completions", json={"stream": stream, **body}).status_code in (200, 504)
            server.until_idle()
            before = server.metrics()[generated]
            data = json.dumps({**slow, "stream": stream}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
            connection = server.connect(head.encode() + data)
            server.until(lambda before=before: server.metrics()[generated] > before)
            connection.close()
        ends = len(tries) + 2 * len(answered) + 2
        wait_until(lambda: len(lines(server.log, "unmask.access")) == ends)
        entries = lines(server.log, "unmask.access")
        server.until_metric(generated, sum(entry["tokens"] for entry in entries))
        server.until_metric(forwards, sum(entry["forwards"] for entry in entries))
        server.until_metric("unmask_prompt_tokens_total", sum(entry["prompt_tokens"] for entry in entries))
    assert all(entry["forwards"] for entry in entries), entries
    assert sum(not entry["tokens"] for entry in entries) == 2  # those of a prompt alone
    assert {"stop", "length", "max_nfe"} <= {end for entry in entries for end in entry["ended_by"]}


def test_a_request_that_the_server_ends_has_a_log_line(checkpoint: Any) -> None:
    flags = ("--log-format", "json", "--drain-timeout", "0")
    with serving("--model", str(checkpoint), *flags, module=FAKE) as server:
        connection = post(server, stream=False)
        server.until_metric("unmask_generated_tokens_total", 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait()
        assert b" 504 " in connection.recv(64)
        (entry,) = lines(server.log, "unmask.access")
    assert (entry["status"], entry["ended_by"]) == (504, ["timeout"])


def test_the_framework_gets_no_query_and_no_cookies_to_parse() -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await Response(status_code=204)(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    context = cast(Any, SimpleNamespace(config=ServerConfig(), draining=False, in_flight=0))
    headers = [(b"host", b"localhost"), (b"cookie", b"a=b; " * 10_000), (b"x-request-id", b"1"), (b"cookie", b"c=d")]
    scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b"a&" * 30_000, "headers": headers}
    middleware = request_middleware.RequestMiddleware(app, context, ApiKeys(()), None, {})
    asyncio.run(middleware(scope, receive, send))
    (passed,) = scopes
    assert passed["query_string"] == b""
    assert passed["headers"] == [(b"host", b"localhost"), (b"x-request-id", b"1")]
    assert passed["path"] == "/health"


def test_probes_are_logged_at_level_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        request_middleware.log_request("GET", "/metrics", 200, 0.001, {}, quiet=True)
        assert not caplog.records
    with caplog.at_level(logging.DEBUG):
        request_middleware.log_request("GET", "/metrics", 200, 0.001, {}, quiet=True)
        assert len(caplog.records) == 1


def test_text_of_a_client_stays_on_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        request_middleware.log_request("GET", "/a\n%s\u2028" + "x" * 500, 404, 0.001, {"refusal": "y" * 5000})
    message = caplog.records[0].getMessage()
    assert "\n" not in message
    assert "\u2028" not in message
    assert len(message) < 600


def test_the_load_is_logged_while_there_is_some(caplog: pytest.LogCaptureFixture) -> None:
    figures = EngineMetrics()
    load = StatsLogger(figures)
    with caplog.at_level(logging.INFO):
        load.log_stats()
        assert not caplog.records
        figures.current[0] = EngineStats(generated_tokens=90, forwards_denoise=30, pages_total=4, pages_used=1)
        load.log_stats()
        load.log_stats()  # nothing has happened since
    assert len(caplog.records) == 1
    fields = caplog.records[0].fields  # type: ignore[attr-defined]
    assert fields["tokens_per_forward"] == 3
    assert fields["kv_usage"] == 0.25
    entry = json.loads(logs.JsonFormatter("frontend").format(caplog.records[0]))
    assert entry["generated_tokens_per_second"] == fields["generated_tokens_per_second"]


@pytest.mark.parametrize(
    ("tokens", "forwards", "shown"), [(0, 0, "n/a"), (0, 30, "0.0"), (90, 30, "3.0"), (10, 30, "0.33")]
)
def test_only_an_absent_figure_is_logged_as_such(
    tokens: int, forwards: int, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    figures = EngineMetrics()
    load = StatsLogger(figures)
    figures.current[0] = EngineStats(prompt_tokens=1, generated_tokens=tokens, forwards_denoise=forwards)
    with caplog.at_level(logging.INFO):
        load.log_stats()
    assert f", {shown} tokens/forward" in caplog.records[0].getMessage()

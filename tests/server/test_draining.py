"""Tests of draining, over connections without sockets: which requests are unfinished, which pipelined ones start."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.config import ServerConfig
from runtime.server import http_server
from runtime.server.http_protocol.guarded_protocol import GuardedProtocol
from runtime.server.http_protocol.limits import Limits
from runtime.server.http_server import HttpFrontend, HttpServer
from runtime.server.metrics import RequestMetrics
from tests.on_loop import on_loop
from tests.server.test_attacks import answers
from tests.server.wire import Transport, app
from tests.wait import TIMEOUT, wait_until_async

GET = b"GET /x HTTP/1.1\r\n\r\n"


def connection_with(*data: bytes) -> tuple[HttpServer, GuardedProtocol, Transport]:
    http = HttpServer(app, Limits(), RequestMetrics())
    http.config.load()
    http.lifespan = http.config.lifespan_class(http.config)
    connection, transport = http.make_protocol(), Transport()
    connection.connection_made(cast(asyncio.Transport, transport))
    for piece in data:
        connection.data_received(piece)
    return http, connection, transport


@on_loop
async def test_a_request_that_has_not_started_is_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_GRACE", 0)  # idle connections would be closed at the first check
    http, connection, transport = connection_with()
    looks = 0
    num_answering = http.num_answering

    def counted() -> int:
        nonlocal looks
        looks += 1
        return num_answering()

    http.num_answering = counted  # type: ignore[method-assign]
    may_start = asyncio.Event()
    http.manager.start_limit.wait = may_start.wait  # type: ignore[method-assign, assignment]
    connection.data_received(GET)
    with socket.socket() as listener:
        listener.setblocking(False)
        serving = SimpleNamespace(
            config=ServerConfig(drain_timeout=TIMEOUT),
            listener=listener,
            engine_client=SimpleNamespace(fail_all=lambda error: 0),
            context=SimpleNamespace(in_flight=0),  # the request has not reached the application
            http=http,
        )
        draining = asyncio.create_task(HttpFrontend.drain(cast(Any, serving)))
        await wait_until_async(lambda: looks > 3)
        assert not draining.done()
        may_start.set()
        await asyncio.wait_for(draining, TIMEOUT)
    assert [status for status, _, _ in answers(transport.sent)] == [200]
    assert transport.closed


@on_loop
async def test_at_the_end_pipelined_requests_after_an_answer_are_not_started() -> None:
    http, _, transport = connection_with(GET * 3)
    http.close_idle()
    for _ in range(20):
        await asyncio.sleep(0)
    ((status, headers, _),) = answers(transport.sent)
    assert (status, headers[b"connection"]) == (200, b"close")
    assert transport.closed

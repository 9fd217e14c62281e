"""Draining, over connections without a transport: what counts as unfinished, and what becomes of pipelined requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.config import ServerConfig
from runtime.server import http_frontend as speaking_module
from runtime.server.http_frontend import HttpFrontend
from runtime.server.http_server import HttpServer
from runtime.server.metrics import RequestMetrics
from runtime.server.wire.connection import Connection
from runtime.server.wire.limits import Limits
from tests.server.test_attacks import answers
from tests.server.wire import Transport, app
from tests.wait import TIMEOUT, wait_until_async

GET = b"GET /x HTTP/1.1\r\n\r\n"


def connection_with(*data: bytes) -> tuple[HttpServer, Connection, Transport]:
    http = HttpServer(app, Limits(), RequestMetrics())
    http.config.load()
    http.lifespan = http.config.lifespan_class(http.config)
    connection, transport = http._connection(), Transport()
    connection.connection_made(cast(asyncio.Transport, transport))
    for piece in data:
        connection.get_buffer(-1)[: len(piece)] = piece
        connection.buffer_updated(len(piece))
    return http, connection, transport


def test_a_request_that_waits_for_its_turn_is_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking_module, "IDLE_GRACE", 0)  # idle connections would be closed at the first look

    async def drain() -> None:
        http, connection, transport = connection_with()
        looks = 0
        at_work = http.at_work

        def counted() -> int:
            nonlocal looks
            looks += 1
            return at_work()

        http.at_work = counted  # type: ignore[method-assign]
        begins: list[Callable[[], None]] = []
        http.roster.turns.take = lambda begin, at_once: begins.append(begin)  # type: ignore[method-assign]
        connection.get_buffer(-1)[: len(GET)] = GET
        connection.buffer_updated(len(GET))
        with socket.socket() as listener:
            listener.setblocking(False)
            speaking = SimpleNamespace(
                config=ServerConfig(drain_timeout=TIMEOUT),
                listener=listener,
                engine_client=SimpleNamespace(fail_all=lambda error: 0),
                context=SimpleNamespace(in_flight=0),  # the application has not seen it
                http=http,
            )
            draining = asyncio.create_task(HttpFrontend.finish(cast(Any, speaking)))
            await wait_until_async(lambda: looks > 3)
            assert not draining.done()
            begins[0]()
            await asyncio.wait_for(draining, TIMEOUT)
        assert [status for status, _, _ in answers(transport.sent)] == [200]
        assert transport.closed

    asyncio.run(drain())


def test_at_the_end_what_is_pipelined_behind_an_answer_is_not_begun() -> None:
    async def end() -> None:
        http, _, transport = connection_with(GET * 3)
        http.close_idle()
        for _ in range(20):
            await asyncio.sleep(0)
        ((status, headers, _),) = answers(transport.sent)
        assert (status, headers[b"connection"]) == (200, b"close")
        assert transport.closed

    asyncio.run(end())

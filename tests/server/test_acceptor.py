"""The door: a crowd is let in at once, in whatever turn of the event loop it came."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
import uvloop

from runtime.server.http_protocol import acceptor
from runtime.server.http_protocol.acceptor import Acceptor
from runtime.server.http_protocol.limits import Limits, accept_batch
from runtime.server.http_server import HttpServer
from runtime.server.metrics import RequestMetrics
from tests.wait import TIMEOUT, wait_until_async

PROBE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
STRANGERS = 3 * accept_batch(Limits.connections)


async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(4 * STRANGERS)
        yield sock


@contextlib.contextmanager
def crowd(listener: socket.socket, size: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(listener.getsockname(), TIMEOUT)) for _ in range(size)]


def test_a_crowd_is_let_in_within_a_few_turns_of_the_loop(listener: socket.socket) -> None:
    """libuv alone takes one in each."""

    async def everything() -> int:
        http = HttpServer(app, Limits(), RequestMetrics())
        serving = asyncio.create_task(http.serve([listener]))
        await wait_until_async(lambda: http.started)
        with crowd(listener, STRANGERS):
            turns = 0
            while len(http.manager.open) < STRANGERS:
                await asyncio.sleep(0)
                turns += 1
        http.should_exit = True
        await serving
        return turns

    assert uvloop.run(everything()) < 20


def test_who_waits_in_the_kernel_when_the_door_closes_is_answered(listener: socket.socket) -> None:
    async def everything() -> list[bytes]:
        http = HttpServer(app, Limits(), RequestMetrics())
        serving = asyncio.create_task(http.serve([listener]))
        await wait_until_async(lambda: http.started)
        address = listener.getsockname()
        with crowd(listener, STRANGERS) as strangers:
            for stranger in strangers:
                stranger.sendall(PROBE)
            await http.close_listener(listener)
            with pytest.raises(ConnectionError):
                socket.create_connection(address, TIMEOUT).recv(1)
            loop = asyncio.get_running_loop()
            answers = []
            for stranger in strangers:
                stranger.setblocking(False)
                answers.append(await asyncio.wait_for(loop.sock_recv(stranger, 12), TIMEOUT))
        http.should_exit = True
        await serving
        return answers

    assert uvloop.run(everything()) == [b"HTTP/1.1 200"] * STRANGERS


def test_a_door_that_closes_lets_in_no_more_than_the_kernel_may_hold(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "BACKLOG", 5)

    async def everything() -> int:
        connections: list[asyncio.Protocol] = []

        def connection() -> asyncio.Protocol:
            connections.append(asyncio.Protocol())
            return connections[-1]

        listener.setblocking(False)
        with crowd(listener, 8):
            await Acceptor(listener, connection, 8).close()
        return len(connections)

    assert uvloop.run(everything()) == 5

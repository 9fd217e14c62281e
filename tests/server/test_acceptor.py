"""Acceptors take all pending connections in a few iterations of the event loop, and share a listener fairly."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop

from runtime.server import http_server as acceptor
from runtime.server.http_protocol.limits import Limits, accept_batch
from runtime.server.http_server import Acceptor, HttpServer
from runtime.server.metrics import RequestMetrics
from tests.on_loop import on_uvloop
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


@contextlib.asynccontextmanager
async def served(listener: socket.socket, processes: int = 1) -> AsyncIterator[HttpServer]:
    http = HttpServer(app, Limits(), RequestMetrics(), processes=processes)
    serving = asyncio.create_task(http.serve([listener]))
    await wait_until_async(lambda: http.started)
    yield http
    http.should_exit = True
    await serving


def collecting(accepted: list[asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
    """Returns a factory of protocols that appends them to `accepted`."""

    def protocol() -> asyncio.Protocol:
        accepted.append(asyncio.Protocol())
        return accepted[-1]

    return protocol


@on_uvloop
async def test_many_connections_are_accepted_within_a_few_iterations_of_the_loop(listener: socket.socket) -> None:
    """Checks that connections are accepted in batches: libuv alone accepts one per iteration."""
    async with served(listener) as http:
        with crowd(listener, STRANGERS):
            iterations = 0
            while len(http.manager.open) < STRANGERS:
                await asyncio.sleep(0)
                iterations += 1
    assert iterations < 20


@on_uvloop
async def test_connections_in_the_backlog_at_shutdown_are_answered(listener: socket.socket) -> None:
    async with served(listener) as http:
        address = listener.getsockname()
        with crowd(listener, STRANGERS) as strangers:
            for stranger in strangers:
                stranger.sendall(PROBE)
            await http.close_listener(listener)
            with pytest.raises(ConnectionError):
                socket.create_connection(address, TIMEOUT).recv(1)
            for stranger in strangers:
                stranger.setblocking(False)
                answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(stranger, 12), TIMEOUT)
                assert answer == b"HTTP/1.1 200"


@on_uvloop
async def test_a_shutdown_accepts_no_more_than_the_backlog(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "BACKLOG", 5)
    connections: list[asyncio.Protocol] = []
    with crowd(listener, 8):
        await Acceptor(listener, collecting(connections), 8).close()
    assert len(connections) == 5


@on_uvloop
async def test_connections_are_accepted_where_the_system_reports_no_queue(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates sandboxes that answer TCP_INFO with zeros."""
    monkeypatch.setattr(acceptor, "_BACKLOG_OFFSET", 4096)  # beyond the structure: reads as zero
    connections: list[asyncio.Protocol] = []
    accepting = Acceptor(listener, collecting(connections), 8)
    accepting.start()
    with crowd(listener, 3):
        await wait_until_async(lambda: len(connections) == 3)
    accepting.stop()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EMFILE, "raise the limit of open files (ulimit -n)"), (errno.ENFILE, "fs.file-max"),
        (errno.ENOBUFS, "the kernel has no memory for sockets"), (errno.ENOMEM, "the kernel has no memory for sockets"),
        (errno.EPERM, "a firewall"), (errno.EIO, f"see errno {errno.EIO}"),
    ],
)  # fmt: skip
@on_uvloop
async def test_an_error_of_accept_is_logged_once_with_its_cause(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, advice: str
) -> None:
    accepted: list[asyncio.Protocol] = []
    accepting = Acceptor(listener, collecting(accepted), 8)
    accept_one, failures = accepting._accept, [number] * 3

    def fail() -> None:
        if failures:
            raise OSError(failures.pop(), "the cause")
        accept_one()

    monkeypatch.setattr(accepting, "_accept", fail)
    accepting.start()
    with crowd(listener, 1):
        await wait_until_async(lambda: accepted)
    accepting.stop()
    (record,) = [each for each in caplog.records if "cannot accept connections: the cause" in each.message]
    assert advice in record.message
    assert ("open files" in record.message) == (number in (errno.EMFILE, errno.ENFILE))


class FirstLost(socket.socket):
    """A listener whose first connection is lost before it is accepted."""

    is_lost = False

    def accept(self) -> tuple[socket.socket, object]:
        connection, address = super().accept()
        if not self.is_lost:
            self.is_lost = True
            connection.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, "lost")
        return connection, address


@on_uvloop
async def test_a_lost_connection_does_not_delay_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    accepted: list[asyncio.Protocol] = []
    with FirstLost() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        accepting = Acceptor(listener, collecting(accepted), 8)
        with crowd(listener, 3):
            accepting.start()
            await wait_until_async(lambda: len(accepted) == 2)
            assert not accepting.failing
            accepting.stop()
    assert "cannot accept" not in caplog.text


class Sharing:
    """Two acceptors of one listener, as in two processes. The test decides which of them wakes first."""

    def __init__(self, listener: socket.socket) -> None:
        self.accepted: list[list[asyncio.Protocol]] = [[], []]
        self.acceptors = [
            Acceptor(listener, collecting(each), 100, 2, lambda each=each: len(each))  # type: ignore[misc]
            for each in self.accepted
        ]

    async def settle(self) -> list[int]:
        registering = [task for each in self.acceptors for task in each.registering]
        if registering:
            await asyncio.wait(registering)
        return [len(each) for each in self.accepted]


@on_uvloop
async def test_a_process_accepts_its_fraction_of_the_backlog(listener: socket.socket) -> None:
    both = Sharing(listener)
    with crowd(listener, 16):
        both.acceptors[0]._on_readable()
        assert await both.settle() == [8, 0]
        both.acceptors[1]._on_readable()
        assert await both.settle() == [8, 4]


@on_uvloop
async def test_a_process_without_connections_accepts_first(listener: socket.socket) -> None:
    both = Sharing(listener)
    with crowd(listener, 1):
        both.acceptors[0]._on_readable()
        assert await both.settle() == [1, 0]
    with crowd(listener, 1):
        both.acceptors[0]._on_readable()  # it has a connection, so it waits
        both.acceptors[1]._on_readable()
        assert await both.settle() == [1, 1]
    with crowd(listener, 1):  # the acceptor that waited accepts the next one
        await wait_until_async(lambda: len(both.accepted[0]) == 2)
    both.acceptors[0].closed = True
    asyncio.get_running_loop().remove_reader(listener.fileno())


def test_a_listener_that_another_process_closes_is_no_error(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    async def close() -> None:
        first, second = Sharing(listener).acceptors
        second.start()
        await first.close()
        second.start()  # in one loop, both have the same reader
        await wait_until_async(lambda: second.closed)
        await second.close()

    uvloop.run(close())
    assert "cannot accept" not in caplog.text


@on_uvloop
async def test_a_shared_listener_serves_all_connections(listener: socket.socket) -> None:
    """Checks that connections in the backlog are served as well when the listener is closed."""
    async with served(listener, processes=2) as http:
        with crowd(listener, STRANGERS):
            await wait_until_async(lambda: len(http.manager.open) == STRANGERS)
            with crowd(listener, 5):
                await http.close_listener(listener)
                assert len(http.manager.open) == STRANGERS + 5

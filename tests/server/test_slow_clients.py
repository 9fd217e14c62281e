"""Tests of time limits of clients that send slowly or stop. Clients that read slowly are served completely."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.server.http_protocol.connection import MAX_JOINED_BYTES, BufferedTransport, Phase
from runtime.server.http_protocol.limits import Limits
from runtime.server.http_protocol.listener import listen
from tests.on_loop import on_loop
from tests.server.test_attacks import answers, read_all
from tests.server.wire import BIG, Wired, wired
from tests.wait import wait_until

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = 1e6  # seconds, for limits that a test does not check


def receive(connection: socket.socket, count: int = 1) -> bytes:
    """Returns `count` answers of `/x` and `/slow`, or fewer if the server closes the connection."""
    data = b""
    while not (data.count(b"HTTP/1.1 ") >= count and data.endswith((b"}", b"slow"))):
        if not (chunk := connection.recv(65536)):
            break
        data += chunk
    return data


def ended(connection: socket.socket) -> None:
    """Checks that the server closes the connection without sending more."""
    with contextlib.suppress(ConnectionError):
        assert connection.recv(1000) == b""


@pytest.fixture
def server() -> Iterator[Wired]:
    """Yields a server with the default limits: 30 s for a head, 75 s between two requests."""
    with wired() as server:
        yield server


@pytest.mark.parametrize("before", [b"", GET, GET + GET])
@pytest.mark.parametrize("half", [b"GET /", GET[:-2], b"POST /x HTTP/1.1\r\nContent-Length: 5\r\n"])
def test_half_a_head_times_out_on_any_request(server: Wired, before: bytes, half: bytes) -> None:
    with server.connect(before) as connection:
        if before:
            receive(connection, before.count(GET))
            server.until_phase(Phase.IDLE)
            server.pass_time(40)  # the time of a head begins with its first byte
        connection.sendall(half)
        server.until_phase(Phase.HEAD)
        server.pass_time(29)
        assert (server.open, server.closed_by_server("slow_head")) == (1, 0)
        server.pass_time(2)
        ended(connection)
    assert server.closed_by_server("slow_head") == 1


def test_a_head_that_arrives_byte_by_byte_times_out(server: Wired) -> None:
    with server.connect(GET) as connection:
        receive(connection)
        connection.sendall(b"GET / HTTP/1.1\r\na: ")
        server.until_phase(Phase.HEAD)
        for _ in range(30):
            assert server.closed_by_server("slow_head") == 0
            connection.sendall(b"x")
            server.pass_time(1)
        server.pass_time(1)
        assert server.closed_by_server("slow_head") == 1
        ended(connection)


def test_an_idle_connection_has_the_longer_limit(server: Wired) -> None:
    with server.connect(GET) as connection:
        assert receive(connection).startswith(b"HTTP/1.1 200 ")
        server.until_phase(Phase.IDLE)
        server.pass_time(74)
        connection.sendall(GET)
        assert receive(connection).startswith(b"HTTP/1.1 200 ")
        assert server.http.config.timeout_keep_alive == 75
    with wired(idle_seconds=0.01) as hasty, hasty.connect(GET) as connection:
        assert receive(connection).startswith(b"HTTP/1.1 200 ")
        ended(connection)


def test_the_time_of_an_answer_does_not_count_for_the_head_that_waits(server: Wired) -> None:
    with server.connect(b"GET /slow HTTP/1.1\r\n\r\n" * 4 + GET[:10]) as connection:
        data = b""
        for _ in range(4):
            server.until_phase(Phase.ANSWER)
            server.pass_time(20)
            server.answer_slow()
            data += receive(connection)
        server.until_phase(Phase.HEAD)
        server.pass_time(20)
        connection.sendall(GET[10:])
        found = answers(data + receive(connection))
    assert [status for status, _, _ in found] == [200] * 5


@pytest.mark.parametrize("before", [b"", GET])
def test_a_body_that_does_not_arrive_is_answered_with_a_timeout(server: Wired, before: bytes) -> None:
    with server.connect(before) as connection:
        if before:
            receive(connection)
        connection.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        server.until_phase(Phase.BODY)
        for _ in range(30):
            assert server.closed_by_server("slow_body") == 0
            connection.sendall(b"x")
            server.pass_time(1)
        server.pass_time(1)
        ((status, headers, body),) = answers(read_all(connection))
        assert (status, headers[b"connection"]) == (408, b"close")
        assert json.loads(body)["error"]["message"] == "the body did not arrive within 30 s"
        assert server.closed_by_server("slow_body") == 1


@pytest.mark.parametrize("size", [2**16, 2**16 + 1, 2**18, 10**6])
def test_reading_resumes_when_the_application_reads_the_body(server: Wired, size: int) -> None:
    """uvicorn pauses reading when the application has not read 64 KiB."""
    head = b"POST /slow HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (size + 1)
    with server.connect(head, b"x" * min(size, 2**17)) as connection:
        server.until_phase(Phase.BODY)
        wait_until(
            lambda: server.on_loop(lambda: [c for c in server.http.manager.open if c.socket_paused]) or size == 2**16
        )
        server.answer_slow()
        connection.sendall(b"x" * (size + 1 - min(size, 2**17)))
        ((status, _, body),) = answers(read_all(connection))
    assert (status, body) == (200, b"%d" % (size + 1))


def test_a_body_trickled_after_a_refusal_does_not_hold_the_connection() -> None:
    with (
        wired(quiet_seconds=LONG) as server,
        server.connect(b"POST /refuse HTTP/1.1\r\nContent-Length: 100000\r\n\r\n") as connection,
    ):
        ((status, headers, _),) = answers(read_all(connection))
        assert (status, headers[b"connection"]) == (401, b"close")
        server.until_phase(Phase.DRAINING)
        for _ in range(30):
            assert server.open == 1  # the client may still read
            connection.sendall(b"x")
            server.pass_time(1)
        server.pass_time(1)
        server.until_open(0)


def test_a_refused_client_that_is_quiet_is_not_waited_for() -> None:
    head = b"POST /refuse HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"
    with wired(drain_seconds=LONG) as server, server.connect(head) as connection:
        read_all(connection)
        server.until_phase(Phase.DRAINING)
        server.pass_time(5)
        assert server.open == 1
        server.pass_time(1)
        server.until_open(0)


def test_no_more_is_discarded_than_the_limit() -> None:
    with wired(discard_bytes=2**20) as server:
        with server.connect(b"POST /refuse HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n") as connection:
            sent = 0
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    sent += connection.send(b"x" * 2**16)
            assert sent < 30 * 2**20  # the rest is in the kernel's buffers
        assert server.closed_by_server("discarded") == 1


@pytest.mark.parametrize("path", ["big", "stream", "break"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_a_reader_that_stops_times_out(path: str, close: bytes) -> None:
    with wired(idle_seconds=LONG) as server:
        with server.connect(b"GET /%s HTTP/1.1\r\n%b\r\n" % (path.encode(), close), receive_buffer=2**15) as connection:
            assert connection.recv(100)
            wait_until(server.unsent, "an answer that is not taken")

            def gone() -> bool:  # by a check that finds no progress since the previous one
                server.pass_time(61)
                return server.open == 0

            wait_until(gone, "the end of the connection")
            assert server.closed_by_server("stalled") == 1
        server.until_requests(0)


def test_a_reader_that_is_slow_gets_everything(server: Wired) -> None:
    rest = b"POST /big HTTP/1.1\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx" + GET
    data, read = b"", 2**21  # bytes between two checks of the server, more than the kernel buffers for the client
    with server.connect(rest, receive_buffer=2**20) as connection:
        while chunk := connection.recv(2**18):
            data += chunk
            if len(data) > read:
                read += 2**21
                server.pass_time(25)
    assert read > BIG
    assert len(answers(data)[0][2]) == BIG
    assert server.closed_by_server("stalled") == 0


def test_the_kernel_drops_data_that_a_client_does_not_acknowledge() -> None:
    """The kernel must time an answer that fits into its buffers, so each accepted connection sets TCP_USER_TIMEOUT."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            milliseconds = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert milliseconds == Limits().stall_seconds * 1000


class Written(SimpleNamespace):
    """A transport of the event loop from which the kernel accepts nothing."""

    def __init__(self) -> None:
        super().__init__(writes=[])

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes))

    def is_closing(self) -> bool:
        return False


@on_loop
async def test_data_that_was_just_written_has_not_stalled() -> None:
    """Checks that the time without progress counts from the write, not from the beginning of the clock."""
    transport = BufferedTransport(cast(asyncio.Transport, Written()), cast(Any, SimpleNamespace()), lambda: 500.0)
    transport.write(b"x" * 10)
    assert transport.stalled_seconds(500.0) == 0
    assert transport.stalled_seconds(600.0) == 100


@on_loop
async def test_writes_of_one_iteration_are_joined() -> None:
    written = Written()
    transport = BufferedTransport(cast(asyncio.Transport, written), cast(Any, SimpleNamespace()), lambda: 0.0)
    transport.write(b"head ")
    transport.write(b"body")
    assert (written.writes, transport.unsent()) == ([], 9)
    await asyncio.sleep(0)
    assert (written.writes, transport.unsent()) == ([b"head body"], 9)
    transport.write(b"last")
    transport.flush()  # as when the connection closes
    await asyncio.sleep(0)
    assert written.writes == [b"head body", b"last"]
    transport.write(b"x" * MAX_JOINED_BYTES)  # flow control must not wait for the next iteration
    assert len(written.writes) == 3


@pytest.mark.parametrize("waiting", [1, 40, 1040])
def test_a_client_that_disconnects_ends_its_requests(server: Wired, waiting: int) -> None:
    """With many requests waiting, the server pauses reading, so it does not read the end of the stream either."""
    with server.connect(b"GET /wait HTTP/1.1\r\n\r\n" * waiting):
        paused = lambda: [c for c in server.http.manager.open if c.socket_paused]  # noqa: E731
        wait_until(lambda: waiting == 1 or server.on_loop(paused), "a pause")
        server.until_requests(1)
    server.until_requests(0)
    server.until_open(0)
    assert server.http.server_state.total_requests == 0  # no waiting request was answered

"""Tests of many connections at once: which are evicted, what probe slots serve, how much memory all may hold."""

import contextlib
import gc
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.server.env import BACKEND_FILES, OWN_FILES, open_files
from runtime.server.http_protocol.connection import Phase
from runtime.server.http_protocol.connection_manager import MIN_EVICTED_BYTES, eviction_key
from runtime.server.http_protocol.guarded_protocol import GuardedProtocol
from runtime.server.http_protocol.limits import DEFAULT_MAX_CONNECTIONS, PROBE_SLOTS, Limits
from runtime.server.logs import RateLimitFilter
from tests.server.harness import ROOT
from tests.server.test_attacks import answers, read_all
from tests.server.wire import BIG, Wired, wired
from tests.wait import wait_until

GET = b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n"
BIG_KEEP_ALIVE = b"GET /big HTTP/1.1\r\n\r\n"
KEEP_ALIVE = b"GET /x HTTP/1.1\r\n\r\n"
WAIT = b"GET /wait HTTP/1.1\r\n\r\n"
HEALTH_KEEP_ALIVE = b"GET /health HTTP/1.1\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"


def ask(server: Wired, data: bytes = GET) -> int:
    with server.connect(data) as connection:
        return status(connection)


def status(connection: socket.socket) -> int:
    return answers(read_all(connection))[0][0]


@contextlib.contextmanager
def crowded(waiting: int = 0, **limits: Any) -> Iterator[tuple[Wired, Callable[..., socket.socket]]]:
    """Yields a server with so many unanswered requests, and a function that connects until the end of the test."""
    with wired(**limits) as server, contextlib.ExitStack() as stack:

        def connect(data: bytes = b"", **options: Any) -> socket.socket:
            return stack.enter_context(server.connect(data, **options))

        for _ in range(waiting):
            connect(WAIT)
        server.until_requests(waiting)
        yield server, connect


def test_incomplete_heads_are_evicted_first_and_then_the_longest_idle_connections() -> None:
    with crowded(connections=4) as (server, connect):
        opened = []
        for data in (KEEP_ALIVE, WAIT, KEEP_ALIVE, b"GET /half"):
            opened.append(connect(data))
            if data == KEEP_ALIVE:
                opened[-1].recv(1000)
        server.until_open(4)
        for victim in (3, 0, 2):  # the incomplete head, then the idle connections in their order
            connect(WAIT)
            with contextlib.suppress(ConnectionError):
                assert opened[victim].recv(10) == b""
            server.until_open(4)
        assert server.closed_by_server("gave_way") == 3
        assert (ask(server), ask(server, HEALTH)) == (503, 200)


def test_probes_are_served_while_all_are_busy_and_others_get_503() -> None:
    with wired(connections=3, probe_slots=2) as server, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(server.connect(WAIT))
        server.until_requests(3)
        assert [ask(server, HEALTH) for _ in range(5)] == [200] * 5
        with server.connect(GET) as connection:
            ((refused, headers, body),) = answers(read_all(connection))
        assert (refused, headers[b"connection"], headers[b"retry-after"]) == (503, b"close", b"1")
        assert json.loads(body)["error"]["code"] == "no_room"
        for _ in range(6):  # incomplete heads do not occupy the probe slots either
            stack.enter_context(server.connect(b"GET /"))
        assert ask(server, HEALTH) == 200
        wait_until(lambda: server.open <= 5)
        # a connection in a probe slot may send any request once other connections have closed
        with server.connect() as spare:
            stack.close()
            server.until_open(1)
            spare.sendall(GET)
            assert status(spare) == 200


def test_probes_do_not_evict_each_other() -> None:
    with crowded(2, connections=2, probe_slots=3) as (server, connect):
        probes = [connect() for _ in range(3)]
        server.until_open(5)
        for probe in probes:
            probe.sendall(HEALTH)
        assert [status(probe) for probe in probes] == [200] * 3
        assert server.closed_by_server("gave_way") == 0


def test_a_probe_that_has_not_been_read_is_not_reset_for_another_connection() -> None:
    with crowded(connections=1, probe_slots=2) as (server, connect):
        probe = connect()  # its request has not arrived yet
        server.until_open(1)
        connect(WAIT)
        server.until_requests(1)
        probe.sendall(HEALTH)
        assert status(probe) == 200
        assert server.closed_by_server("gave_way") == 0


def test_a_silent_connection_is_evicted_once_its_request_is_overdue() -> None:
    with crowded(connections=1) as (server, connect):
        silent = connect()
        server.until_open(1)
        server.pass_time(Limits.arrival_seconds)
        connect(WAIT)
        server.until_requests(1)
        assert silent.recv(10) == b""
        assert server.closed_by_server("gave_way") == 1


def test_idle_connections_leave_probe_slots_before_new_ones_do() -> None:
    with crowded(1, connections=1, probe_slots=3) as (server, connect):
        idle = [connect(HEALTH_KEEP_ALIVE) for _ in range(3)]
        assert [answers(connection.recv(1000))[0][0] for connection in idle] == [200] * 3
        probes = [connect() for _ in range(3)]
        wait_until(lambda: server.closed_by_server("gave_way") == 3)
        for probe in probes:
            probe.sendall(HEALTH)
        assert [status(probe) for probe in probes] == [200] * 3


def test_probe_slots_do_not_count_as_connections_of_others() -> None:
    with crowded(1, connections=2, probe_slots=2) as (server, connect):
        busy = connect(WAIT)
        server.until_requests(2)
        for _ in range(2):
            connect(HEALTH_KEEP_ALIVE).recv(1000)
        busy.close()
        server.until_open(3)
        assert ask(server) == 200


def read_until(reader: socket.socket, size: int, end: int) -> int:
    while size < end:
        got = len(reader.recv(2**18))
        assert got, "the answer is cut off"
        size += got
    return size


def test_an_answer_that_is_being_read_is_not_evicted_at_once() -> None:
    with crowded(connections=1) as (server, connect):
        reader = connect(BIG_KEEP_ALIVE, receive_buffer=2**15)
        server.until_phase(Phase.IDLE)
        assert server.unsent()
        assert ask(server) == 503
        read_until(reader, 0, BIG)
        wait_until(lambda: not server.unsent())
        assert ask(server) == 200  # idle without unsent data, it is evicted
        assert server.closed_by_server("gave_way") == 1


@pytest.mark.parametrize("ending", [b"", b"Connection: close\r\n"])
def test_a_connection_that_reads_an_answer_is_not_evicted(ending: bytes) -> None:
    """Checks answers that the application has finished, on connections that are idle or about to close."""
    with crowded(connections=2, idle_seconds=10) as (server, connect):
        reader = connect(BIG_KEEP_ALIVE[:-2] + ending + b"\r\n", receive_buffer=2**15)
        size = len(reader.recv(100))
        server.until_requests(0)
        while size < BIG:
            size = read_until(reader, size, min(size + 2**20, BIG))
            server.pass_time(1)
            assert answers(connect(KEEP_ALIVE).recv(1000))[0][0] == 200
        assert server.now > 1010  # longer than a connection may be idle
        assert server.closed_by_server("gave_way") > 1


def test_the_order_in_which_connections_are_evicted() -> None:
    """The order is that of the phases. Unsent answers rank with CLOSING, the one longest stalled first."""

    def waiting(phase: Phase, since: float, moved: float | None = None) -> SimpleNamespace:
        transport = SimpleNamespace(unsent=lambda: 0 if moved is None else 10**6, progressed=moved or 0.0)
        return SimpleNamespace(phase=phase, since=since, transport=transport)

    order = [
        waiting(Phase.DRAINING, 9), waiting(Phase.HEAD, 7), waiting(Phase.HEAD, 8), waiting(Phase.IDLE, 6),
        waiting(Phase.BODY, 5), waiting(Phase.IDLE, 4, moved=4), waiting(Phase.CLOSING, 3, moved=5),
        waiting(Phase.IDLE, 2, moved=6), waiting(Phase.ANSWER, 1, moved=3), waiting(Phase.ANSWER, 0, moved=7),
    ]  # fmt: skip
    keys = [eviction_key(connection) for connection in order]  # type: ignore[arg-type]
    assert keys == sorted(set(keys))


def test_slow_bodies_are_evicted_too_but_not_at_once() -> None:
    with crowded(connections=3) as (server, connect):
        for _ in range(3):
            connect(b"POST /x HTTP/1.1\r\nContent-Length: 10\r\n\r\nx")
        server.until_requests(3)
        server.pass_time(1)
        assert ask(server) == 503
        server.pass_time(2)
        assert ask(server) == 200
        assert server.closed_by_server("gave_way") == 1


def test_unfinished_bodies_of_all_are_bounded_together() -> None:
    held = 8 * 2**20
    with crowded(buffered_bytes=held) as (server, connect):
        for _ in range(20):
            with contextlib.suppress(ConnectionError):
                connect().sendall(b"POST /x HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_000_000)
            assert server.http.manager.buffered <= held + 2**16
            server.pass_time(0.01)  # evicts the connection that has waited longest
        wait_until(lambda: server.closed_by_server("memory") >= 15)  # each byte of an incomplete body counts as 1.5
        server.pass_time(0.01)
        assert ask(server) == 200
        head = b"POST /x HTTP/1.1\r\nConnection: close\r\nContent-Length: 1500000\r\n\r\n"
        assert ask(server, head + b"x" * 1_500_000) == 200
    assert server.http.manager.buffered == 0


def test_incomplete_heads_are_evicted_before_an_answer() -> None:
    with crowded(buffered_bytes=2**20) as (server, connect):
        stream = connect(b"GET /stream HTTP/1.1\r\nConnection: close\r\n\r\n", receive_buffer=2**15)
        wait_until(lambda: server.unsent() > MIN_EVICTED_BYTES)
        for _ in range(40):
            with contextlib.suppress(ConnectionError):
                connect().sendall(b"GET /" + b"x" * 50_000)
        wait_until(lambda: server.closed_by_server("memory") >= 5)
        assert read_all(stream).endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        KEEP_ALIVE * 500, b"GET /half", b"POST /refuse HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
        b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
        b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 300 + b"\r\n",
        b"NONSENSE\r\n\r\n", GET,
    ],
)  # fmt: skip
def test_memory_of_connections_is_released(data: bytes) -> None:
    """Reference cycles would hold an attacker's memory until the next full collection."""
    with wired() as server:

        def begun() -> bool:
            """Returns whether the server has received the beginning of a request."""
            return server.on_loop(lambda: any(c.unparsed or c.in_body for c in server.http.manager.open))

        gc.collect()
        gc.disable()
        try:
            with server.connect(data) as connection:
                if data.startswith((b"GET /half", b"POST /x HTTP/1.1\r\nContent-Length")):
                    wait_until(begun)
                else:
                    connection.recv(10)
            server.until_open(0)
            server.until_requests(0)
            wait_until(lambda: not any(type(o) is GuardedProtocol for o in gc.get_objects()))
        finally:
            gc.enable()
        assert server.http.manager.buffered == 0
        assert not any(server.http.manager.waiting.values())


def limited(files: int, *args: str) -> subprocess.CompletedProcess[str]:
    """Calls `raise_open_files_limit` in a process with this hard limit of open files."""
    code = (
        "import resource, sys\n"
        "from runtime.errors import ConfigError\n"
        "from runtime.server.env import raise_open_files_limit\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (min(64, {files}), {files}))\n"
        "try: print(raise_open_files_limit(*eval(sys.argv[1])), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "except ConfigError as error: sys.exit(str(error))"
    )
    return subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True)


def test_connections_fit_the_limit_of_open_files() -> None:
    own = OWN_FILES + BACKEND_FILES + PROBE_SLOTS
    few = own + open_files(0)  # with few connections, few new ones are accepted at once
    assert limited(256, "(None, 1)").stdout.split() == [str(256 - few), "256"]
    connections = int(limited(3000, "(None, 1)").stdout.split()[0])
    assert own + open_files(connections) <= 3000 < own + open_files(connections + 1)
    assert limited(15_000, "(None, 1)").stdout.split() == [
        str(DEFAULT_MAX_CONNECTIONS),
        str(own + open_files(DEFAULT_MAX_CONNECTIONS)),
    ]
    assert limited(15_000, "(9000, 1)").stdout.split() == ["9000", str(own + open_files(9000))]
    refused = limited(600, "(600, 1)")
    assert refused.returncode == 1
    assert "--max-connections: 600" in refused.stderr
    assert f"set at most {600 - few}" in refused.stderr
    assert "ulimit -n" in limited(100, "(None, 1)").stderr


def test_log_lines_above_the_limit_are_counted_and_not_written(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test.strangers")
    now = 100.0
    sparse = RateLimitFilter(clock=lambda: now)
    sparse.limit, sparse.kinds = 3, 2
    log.addFilter(sparse)
    with caplog.at_level(logging.INFO):
        for i in range(1000):
            log.info("stranger %d", i)
        for i in range(100):
            log.info(f"of its own {i}")
        assert len(caplog.records) == 3 + 1 + 3
        now += 11
        sparse.report_dropped()
    *_, summary = [record.getMessage() for record in caplog.records]
    assert summary == "suppressed 1093 more lines in 10 s: 997 of 'stranger %d', 96 of 'other lines'"
    log.removeFilter(sparse)


@pytest.mark.parametrize(("processes", "lines"), [(1, 20), (4, 5), (64, 1)])
def test_lines_of_many_kinds_are_limited_per_second(
    caplog: pytest.LogCaptureFixture, processes: int, lines: int
) -> None:
    log = logging.getLogger("test.kinds")
    now = 100.0
    sparse = RateLimitFilter(clock=lambda: now)
    sparse.divide(processes)
    log.addFilter(sparse)

    def lines_in_this_second() -> int:
        before = len(caplog.records)
        for i in range(30 * 15):
            log.info(f"kind {i % 30:02} " + "x" * 100)
        return len(caplog.records) - before

    with caplog.at_level(logging.INFO):
        counts = [lines_in_this_second()]
        for _ in range(9):
            now += 1
            counts.append(lines_in_this_second())
        assert counts == [lines] * 10
        now += 1
        assert lines_in_this_second() == lines + 1  # and the summary of the interval
    (summary,) = [message for message in caplog.messages if message.startswith("suppressed")]
    assert summary.startswith(f"suppressed {4500 - 10 * lines} more lines in 10 s: ")
    assert summary.endswith(" others")
    assert len(summary) < 1200
    log.removeFilter(sparse)

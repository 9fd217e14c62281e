"""Tests of attacks by clients without a key on a real server: its memory, descriptors and log stay small."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.server.harness import FAKE, KEY, ServerProcess, serving
from tests.wait import TIMEOUT, wait_until

MB = 2**20
GROWTH = 100 * MB  # limit of the growth of the process
LEFT = 20 * MB  # limit of the growth that is left afterwards


@contextlib.contextmanager
def little_memory(server: ServerProcess) -> Iterator[None]:
    """Checks that a server's frontend grows by less than `GROWTH` in a block, and less than `LEFT` afterwards."""
    process, over = psutil.Process(server.process.pid), threading.Event()
    before, grown = process.memory_info().rss, [0]

    def growth() -> int:
        return int(process.memory_info().rss - before)

    def watch() -> None:
        while not over.wait(0.02):
            grown[0] = max(grown[0], growth())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert grown[0] < GROWTH, f"the frontend grew by {grown[0] / MB:.0f} MB"
    wait_until(lambda: growth() < LEFT, "memory that is given back")


def pour(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    """Sends all pieces, or as many as the server reads before it closes the connection."""
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)


def fill(connection: socket.socket, data: bytes) -> None:
    """Sends as much as the server reads while the client reads no answer."""
    connection.settimeout(0.5)  # a slow machine may send less
    with contextlib.suppress(TimeoutError, ConnectionError):
        connection.sendall(data)
    connection.settimeout(TIMEOUT)


def read_all(connection: socket.socket) -> bytes:
    """Returns all data until the server closes the connection."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def answers(data: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """Returns the status, headers and body of each answer. All answers but streams have a content-length."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
        size = int(headers.get(b"content-length", 0))
        found.append((int(first.split()[1]), headers, data[:size]))
        data = data[size:]
    return found


def healthy(server: ServerProcess, tries: int = 20) -> None:
    """Checks that each probe, on a new connection, is answered. `make siege` measures how soon."""
    for _ in range(tries):
        with server.connect() as probe:
            probe.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert read_all(probe).startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_take_no_memory(keyed: ServerProcess) -> None:
    with little_memory(keyed), keyed.connect() as connection:
        reader = threading.Thread(target=read_all, args=(connection.dup(),), daemon=True)
        reader.start()
        pour(connection, [b"GET / HTTP/1.1\r\n\r\n" * 60_000])  # 240 MB if the server held each request
        connection.shutdown(socket.SHUT_RDWR)


def test_pipelined_requests_with_unread_answers_take_no_memory(keyed: ServerProcess) -> None:
    with little_memory(keyed), contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(keyed.connect())
            fill(connection, b"GET /metrics HTTP/1.1\r\n\r\n" * 40_000)
        healthy(keyed)


HEAD = 2**17  # bytes of a head that does not end, twice the limit
GET = b"GET / HTTP/1.1\r\n"
CHUNKED = b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = {
    "header lines": GET + b"a:\r\n" * (HEAD // 4), "one header": GET + b"a: " + b"x" * HEAD,
    "header name": GET + b"x" * HEAD, "address": b"GET /" + b"x" * HEAD,
    "trailers": CHUNKED + b"0\r\n" + b"a: b\r\n" * (HEAD // 6), "one trailer": CHUNKED + b"0\r\na: " + b"x" * HEAD,
    "upgrade": GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + b"a:\r\n" * (HEAD // 4),
    "chunk extension": CHUNKED + b"5;" + b"x" * HEAD,
}  # fmt: skip


@pytest.mark.parametrize("kind", LONG)
def test_a_long_head_is_refused_before_its_end(server: ServerProcess, kind: str) -> None:
    with server.connect() as connection:
        pour(connection, [LONG[kind]])
        (status, headers, body), *more = answers(read_all(connection))
    assert not more
    assert (status, headers[b"connection"]) == (431, b"close")
    assert json.loads(body)["error"]["code"] == "headers_too_large"


def test_64_kib_of_headers_are_served(server: ServerProcess) -> None:
    lines = b"".join(b"h%d: %s\r\n" % (i, b"x" * 640) for i in range(98))
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n" + lines + b"\r\n")
        assert answers(read_all(connection))[0][0] == 200


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("to", [b"h2c", b"websocket"])
def test_an_upgrade_request_is_ignored_and_its_body_read(server: ServerProcess, separate: bool, to: bytes) -> None:
    body = b'{"prompt": "hello"}'
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n"
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: %d\r\n\r\n" % (to, len(body))
    )
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head if separate else head + body)
        if separate:
            time.sleep(0.1)  # makes two TCP segments likely; the answers do not depend on it
            connection.sendall(body)
        connection.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        tokenized, health = answers(read_all(connection))
    assert tokenized[0] == health[0] == 200
    assert len(json.loads(tokenized[2])["tokens"]) >= 5


def test_the_body_of_a_refused_upgrade_is_not_parsed(server: ServerProcess) -> None:
    """The body is no request: a server that parses it answers a second time, with 400."""
    body = b'{"prompt": "hello"}'
    head = (
        b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: %d\r\n\r\n"
    )
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head % len(body))
        assert connection.recv(1, socket.MSG_PEEK)  # the head has been answered
        with contextlib.suppress(ConnectionError):
            connection.sendall(body)
            connection.shutdown(socket.SHUT_WR)
        found = answers(read_all(connection))
    assert [status for status, _, _ in found] == [404]


def test_connect_is_refused(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\nhello")
        ((status, headers, body),) = answers(read_all(connection))
    assert (status, headers[b"connection"]) == (405, b"close")
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 401), ("/health", 405)])
def test_a_refusal_arrives_although_the_body_is_not_read(keyed: ServerProcess, path: str, status: int) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {24 * MB}\r\n\r\n".encode()
    with little_memory(keyed), keyed.connect() as connection:
        connection.sendall(head)
        pour(connection, [b"x" * MB] * 24)
        ((found, headers, _),) = answers(read_all(connection))
    assert (found, headers[b"connection"]) == (status, b"close")


def test_100_continue_is_not_sent_before_a_refusal(keyed: ServerProcess) -> None:
    expects = "Host: localhost\r\nExpect: 100-continue\r\nContent-Length:"
    for key, size, status in (("", 10, b"401"), (f"Authorization: Bearer {KEY}\r\n", 3 * MB, b"413")):
        with keyed.connect() as connection:
            connection.sendall(f"POST /tokenize HTTP/1.1\r\n{key}{expects} {size}\r\n\r\n".encode())
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"\r\nconnection: close\r\n" in answer
    with keyed.connect() as connection:
        body = b'{"prompt": "x"}'
        head = f"POST /tokenize HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\n{expects} {len(body)}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


SLOW = {
    "nothing": b"",
    "half a head": b"GET /health HTTP/1.1\r\nHost:",
    "an idle connection": b"GET /health HTTP/1.1\r\n\r\n",
    "half a head after an answer": b"GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\nHost:",
    "a refused body": b"POST /generate HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{",
}


@pytest.fixture(scope="module")
def few_files(checkpoint: Path) -> Iterator[ServerProcess]:
    with serving("--model", str(checkpoint), module=FAKE, files=256, env={"UNMASK_API_KEY": KEY}) as server:
        yield server


@pytest.mark.parametrize("kind", SLOW)
def test_slow_clients_do_not_take_all_descriptors(few_files: ServerProcess, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(few_files.connect())
            with contextlib.suppress(ConnectionError):
                connection.sendall(SLOW[kind])
        healthy(few_files)
        open_files = len(psutil.Process(few_files.process.pid).net_connections("tcp"))
        assert open_files < 240


def test_invalid_requests_do_not_fill_the_log(keyed: ServerProcess) -> None:
    def lines() -> int:
        return len(keyed.log.splitlines())

    before = lines()
    for data in (
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 300 + b"\r\n",
    ):
        for _ in range(300):
            with keyed.connect() as connection:
                connection.sendall(data)
                connection.recv(1000)
    assert lines() - before < 150


def test_many_pipelining_clients_do_not_block_probes(keyed: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(keyed.connect()).sendall(b"GET /nowhere HTTP/1.1\r\n\r\n" * 200)
        healthy(keyed)

"""Runs connections over an application that acts by the path, in a thread with real sockets, or without sockets."""

import asyncio
import concurrent.futures
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import uvloop

from runtime.server.http_protocol.connection import Phase
from runtime.server.http_protocol.limits import Limits
from runtime.server.http_server import HttpServer
from runtime.server.metrics import RequestMetrics
from tests.wait import TIMEOUT, wait_until

T = TypeVar("T")
READ_BYTES = 2**18  # maximum that the event loop reads at once
BIG = 16 * 2**20  # bytes of an answer, more than the kernel buffers for a client


async def read(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("gone")
        body += message["body"]
        if not message["more_body"]:
            return body


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Responds by path: `/refuse` reads no body, `/wait` waits for the disconnect, `/big` and `/stream` send much."""

    async def answer(body: bytes, status: int = 200) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    match scope["path"]:
        case "/refuse":
            await answer(b"no", 401)
        case "/slow":
            await answer(b"slow" if scope["method"] == "GET" else b"%d" % len(await read(receive)))
        case "/big":
            await read(receive)
            await answer(b"x" * BIG)
        case "/wait":
            with contextlib.suppress(ConnectionError):
                await read(receive)
            await receive()
        case "/stream" | "/break":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(BIG // 2**16):
                await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})
            if scope["path"] == "/break":
                raise RuntimeError("the answer breaks")
            await send({"type": "http.response.body", "body": b""})
        case _:
            with contextlib.suppress(ConnectionError):
                body = await read(receive)
                echo = {"method": scope["method"], "path": scope["path"], "body": body.decode("latin-1")}
                await answer(json.dumps(echo).encode())


class Wired:
    """A server with `app`, and with a clock that advances only in `pass_time`.

    It answers `/slow` once the test calls `answer_slow`.
    """

    def __init__(self, limits: Limits) -> None:
        self.now = 1000.0
        self.metrics = RequestMetrics()
        self.http = HttpServer(self._app, limits, self.metrics, clock=lambda: self.now)
        self.slow = asyncio.Semaphore(0)
        self.begun = 0  # requests that have reached the application
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(100)
        self.thread = threading.Thread(target=lambda: uvloop.run(self._serve()))

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self.http.serve(sockets=[self.listener])

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        if scope["path"] == "/slow":
            await self.slow.acquire()
        await app(scope, receive, send)

    def answer_slow(self) -> None:
        """Lets the application answer one request of `/slow`."""
        self.on_loop(self.slow.release)

    def on_loop(self, call: Callable[[], T]) -> T:
        """Runs `call` in the server's thread, between two events, and returns its result."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result(TIMEOUT)

    def pass_time(self, seconds: float) -> None:
        """Advances the clock. Returns after the server has checked its connections at that time."""
        self.now += seconds
        self.on_loop(self.http.manager.check_timeouts)

    def phases(self) -> list[Phase]:
        """Returns the phase of each open connection."""
        return self.on_loop(lambda: [connection.phase for connection in self.http.manager.open])

    def until_phase(self, phase: Phase) -> None:
        """Waits until the only connection is in this phase."""
        wait_until(lambda: self.phases() == [phase], str(phase))

    def until_open(self, count: int) -> None:
        """Waits until `count` connections are open."""
        wait_until(lambda: self.open == count, f"{count} open connections")

    def until_requests(self, count: int) -> None:
        """Waits until the application is processing `count` requests."""
        wait_until(lambda: len(self.http.server_state.tasks) == count, f"{count} requests")

    def unsent(self) -> int:
        """Returns the bytes of answers that neither clients nor the kernel have accepted."""
        return self.on_loop(lambda: sum(connection.transport.unsent() for connection in self.http.manager.open))

    def connect(self, *data: bytes, receive_buffer: int | None = None) -> socket.socket:
        """Connects and sends `data`. `receive_buffer`: bytes that the client's kernel buffers."""
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(TIMEOUT)
        connection.connect(self.listener.getsockname())
        for piece in data:
            connection.sendall(piece)
        return connection

    def closed_by_server(self, reason: str) -> float:
        return self.metrics.closed_by_server.labels(reason)._value.get()

    @property
    def open(self) -> int:
        return len(self.http.manager.open)


@contextlib.contextmanager
def wired(**limits: Any) -> Iterator[Wired]:
    server = Wired(Limits(**{"check_seconds": 0, **limits}))
    server.thread.start()
    try:
        wait_until(lambda: server.http.started, "the server")
        yield server
    finally:
        server.http.should_exit = True
        server.thread.join(TIMEOUT)


class Transport:
    """A transport that records what a connection writes."""

    def __init__(self) -> None:
        self.sent = b""
        self.reading = True
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data

    def write_eof(self) -> None:
        self.closed = True

    close = abort = write_eof

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0


async def exchange(segments: list[bytes], patience: int = 2, **limits: Any) -> tuple[bytes, int]:
    """Returns a connection's answers to these segments, and the maximum number of concurrent requests.

    `patience`: iterations of the loop between segments.
    """
    http = HttpServer(app, Limits(**limits), RequestMetrics())
    http.config.load()
    http.lifespan = http.config.lifespan_class(http.config)
    connection = http.make_protocol()
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    started = 0
    for segment in segments:
        left = segment
        while left:
            while not transport.reading:
                await asyncio.sleep(0)
            part, left = left[:READ_BYTES], left[READ_BYTES:]
            connection.data_received(part)
            started = max(started, len(http.server_state.tasks))
        for _ in range(patience):
            await asyncio.sleep(0)
    while connection.is_answering or connection.unparsed:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # data is sent at the end of an iteration
    connection.connection_lost(None)
    return transport.sent, started

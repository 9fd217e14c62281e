"""Connections over an application that does what its path says: in a thread over real sockets, or over no transport."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvloop

from runtime.server.http import HttpServer
from runtime.server.observed import Observed
from runtime.server.wire.connection import Connection
from runtime.server.wire.limits import Limits
from tests.server.harness import wait_for

BIG = 16 * 2**20  # bytes of an answer: more than the kernel takes for a client


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
    """`/refuse` reads no body, `/wait` answers when the client has gone, `/big` and `/stream` say much."""

    async def answer(body: bytes, status: int = 200) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    match scope["path"]:
        case "/refuse":
            await answer(b"no", 401)
        case "/slow":
            await asyncio.sleep(0.3)
            await answer(b"slow")
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
                told = {"method": scope["method"], "path": scope["path"], "body": body.decode("latin-1")}
                await answer(json.dumps(told).encode())


class Wired:
    """A server with such an application."""

    def __init__(self, limits: Limits) -> None:
        self.metrics = Observed()
        self.http = HttpServer(app, limits, self.metrics)
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(100)
        self.thread = threading.Thread(target=lambda: uvloop.run(self.http.serve(sockets=[self.listener])))

    def connect(self, *data: bytes, room: int | None = None) -> socket.socket:
        """`room`: bytes that the client's kernel takes for it."""
        connection = socket.socket()
        if room is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        connection.settimeout(20)
        connection.connect(self.listener.getsockname())
        for piece in data:
            connection.sendall(piece)
        return connection

    def given_up(self, reason: str) -> float:
        return self.metrics.given_up.labels(reason)._value.get()

    @property
    def open(self) -> int:
        return len(self.http.roster.open)


@contextlib.contextmanager
def wired(**limits: Any) -> Iterator[Wired]:
    times = {"sweep_seconds": 0.05}
    server = Wired(Limits(**{**times, **limits}))
    server.thread.start()
    try:
        wait_for(lambda: server.http.started, 10)
        yield server
    finally:
        server.http.should_exit = True
        server.thread.join(20)


class Transport:
    """Takes what a connection writes."""

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
    """What a connection answers to these segments, and the most requests that it held. `patience`: turns of the loop
    between segments."""
    http = HttpServer(app, Limits(**limits), Observed())
    http.config.load()
    http.lifespan = http.config.lifespan_class(http.config)
    connection: Connection = http._connection()
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    held = 0
    for segment in segments:
        left = segment
        while left:
            while not transport.reading:
                await asyncio.sleep(0)
            buffer = connection.get_buffer(-1)
            part, left = left[: len(buffer)], left[len(buffer) :]
            buffer[: len(part)] = part
            connection.buffer_updated(len(part))
            held = max(held, len(connection.queue))
        for _ in range(patience):
            await asyncio.sleep(0)
    while connection.current is not None or connection.queue:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # what the last turn wrote goes out at its end
    connection.connection_lost(None)
    return transport.sent, held

"""The server as an attacker sees it: an address, perhaps a key, and the time at which the attack must stop."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import itertools
import json
import socket
import termios
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

PIECE = 2**16  # bytes written at a time
RECEIVE_BUFFER = 4096  # bytes of a narrow connection
SEGMENT = 536
LAST_ANSWERS = 5.0  # seconds after the attack's time in which an answer may still arrive

# Errors by which a server defends itself are no errors of the attack.
REBUFFED = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, ValueError)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Target:
    port: int
    key: str | None
    until: float  # time.monotonic()
    stopped: Callable[[], bool]
    pause_factor: float = 1.0  # multiplies every pause
    did: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # promises that the server broke

    def on(self) -> bool:
        return time.monotonic() < self.until and not self.stopped()

    def left(self) -> float:
        return max(self.until - time.monotonic(), 0.0)

    async def pause(self, seconds: float) -> None:
        end = min(time.monotonic() + seconds * self.pause_factor, self.until)
        while self.on() and (rest := end - time.monotonic()) > 0:
            await asyncio.sleep(min(rest, 0.5))

    def says(self, sentence: str) -> None:
        """Records a broken promise, once."""
        if sentence not in self.broken:
            self.broken.append(sentence)

    @contextlib.contextmanager
    def rebuffed(self) -> Iterator[None]:
        try:
            yield
        except REBUFFED as error:
            self.did[f"rebuffed: {type(error).__name__}"] += 1

    # -- bytes

    def head(self, method: str, path: str, *lines: str, key: bool = True) -> bytes:
        """Returns the request line and headers, with the attacker's key if it has one."""
        authorization = [f"Authorization: Bearer {self.key}"] if self.key and key else []
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: siege", *authorization, *lines, "", ""]).encode()

    def post(self, path: str, body: bytes | dict[str, Any], *lines: str) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = ("Content-Type: application/json", f"Content-Length: {len(data)}")
        return self.head("POST", path, *kind, *lines) + data

    # -- connections

    async def connect(self, narrow: bool = False) -> Streams:
        """Opens a new connection.

        A `narrow` one has small segments and a small receive buffer, as over a slow network. Unread data then stays in
        the server, whereas with loopback's own segments the kernel buffers megabytes.
        """
        sock = socket.socket()
        sock.setblocking(False)
        if narrow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        try:
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except BaseException:
            sock.close()
            raise
        self.did["connections"] += 1
        return await asyncio.open_connection(sock=sock)

    @contextlib.asynccontextmanager
    async def connection(self) -> Any:
        reader, writer = await self.connect()
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Sends `data` as fast as the server reads it. Raises when the server closes the connection."""
        view = memoryview(data)
        for start in range(0, len(data), PIECE):
            if not self.on() and start:
                return
            writer.write(view[start : start + PIECE])
            async with asyncio.timeout(self.left() + LAST_ANSWERS):
                await writer.drain()
            self.did["bytes"] += min(PIECE, len(data) - start)

    async def answer(self, reader: asyncio.StreamReader, seconds: float = 30.0) -> tuple[int, bytes]:
        """Returns the status and body of one answer. Raises if there is none."""
        async with asyncio.timeout(min(seconds, self.left() + LAST_ANSWERS)):
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            body = await reader.readexactly(length)
        self.did[f"answer {status}"] += 1
        return status, body

    async def ask(self, request: bytes) -> None:
        """Sends one request on a new connection, and reads its answer."""
        with self.rebuffed():
            async with self.connection() as (reader, writer):
                await self.write(writer, request)
                await self.answer(reader)

    async def keep_up(self, requests: Iterable[bytes], count: int, pause: float = 0.05) -> None:
        """Keeps `count` requests in flight, each the next one and on a new connection."""
        following = iter(requests)

        async def one() -> None:
            while self.on():
                await self.ask(next(following))
                await self.pause(pause)

        await asyncio.gather(*(one() for _ in range(count)))

    async def ask_in_turn(self, requests: Sequence[bytes], count: int, pause: float) -> None:
        """Sends one request after the other, again and again, each `count` times at once."""
        for request in itertools.cycle(requests):
            if not self.on():
                return
            await asyncio.gather(*(self.ask(request) for _ in range(count)))
            await self.pause(pause)

    async def hold(self, count: int, use: Callable[[Streams], Awaitable[None]], pause: float = 1.0) -> None:
        """Keeps `count` connections on which `use` runs. If one ends, another is opened after a pause."""

        async def one(number: int) -> None:
            await self.pause(number / count)
            while self.on():
                with self.rebuffed():
                    async with self.connection() as streams:
                        await use(streams)
                await self.pause(pause)

        await asyncio.gather(*(one(i) for i in range(count)))

    async def keep_asking(self, request: bytes, pause: float = 0.02) -> None:
        """Sends the same request repeatedly on one connection, and opens another if that ends."""
        while self.on():
            with self.rebuffed():
                async with self.connection() as (reader, writer):
                    while self.on():
                        writer.write(request)
                        await self.answer(reader)
                        await self.pause(pause)
            await self.pause(pause)

    async def pour(self, start: bytes, filler: bytes, total: int, end: bytes = b"", read: bool = True) -> None:
        """Sends `start`, then `filler` repeated up to `total` bytes, then `end`, on one connection."""
        with self.rebuffed():
            async with self.connection() as (reader, writer):
                drain = asyncio.create_task(self._discard(reader)) if read else None
                try:
                    await self.write(writer, start)
                    block = filler * max(PIECE // len(filler), 1)
                    for _ in range(max(total // len(block), 1)):
                        if not self.on():
                            break
                        await self.write(writer, block)
                    await self.write(writer, end)
                    if drain is not None:
                        await asyncio.wait([drain], timeout=min(LAST_ANSWERS, self.left() + 1))
                    else:
                        await self.pause(3)
                finally:
                    if drain is not None:
                        drain.cancel()
                        await asyncio.gather(drain, return_exceptions=True)

    async def _discard(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(*REBUFFED):
            first = await reader.read(PIECE)
            self.did[f"first answer {first[9:12].decode(errors='replace') or 'none'}"] += 1
            while await reader.read(PIECE):
                pass


class Unread:
    """A connection from which nothing is read, and its state in the kernel."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        # a duplicate of the descriptor, because the transport's socket forbids some calls
        self.sock = socket.fromfd(writer.get_extra_info("socket").fileno(), socket.AF_INET, socket.SOCK_STREAM)

    def close(self) -> None:
        self.sock.close()

    def held(self) -> bool:
        """Returns whether the connection is still established."""
        established = 1
        return bool(self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == established)

    def is_held(self) -> bool:
        """Returns whether a process still holds the server's end.

        The client does not see that the server's kernel dropped a connection by itself because nothing was read. The
        kernel may also keep sending the data of a closed connection for a while.
        """
        ends = f":{self.sock.getpeername()[1]:04X}", f":{self.sock.getsockname()[1]:04X}"
        with open("/proc/net/tcp") as table:
            for line in table:
                local, remote, inode = (fields := line.split())[1], fields[2], fields[9]
                if local.endswith(ends[0]) and remote.endswith(ends[1]):
                    return inode != "0"
        return False

    def waiting(self) -> int:
        """Returns the number of bytes that have arrived and are not read."""
        found = array.array("i", [0])
        fcntl.ioctl(self.sock.fileno(), termios.FIONREAD, found)
        return found[0]

    def status(self) -> str:
        """Returns the status of the unread answer; empty if there is none."""
        with contextlib.suppress(OSError):
            return self.sock.recv(12, socket.MSG_PEEK | socket.MSG_DONTWAIT)[9:12].decode(errors="replace")
        return ""

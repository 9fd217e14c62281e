"""What an attacker sees: an address, perhaps a key, and a time at which it has to stop."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import json
import socket
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

PIECE = 2**16  # bytes written at a time
RECEIVE_BUFFER = 4096  # bytes, of a narrow connection
SEGMENT = 536
LAST_ANSWERS = 5.0  # seconds in which an answer to what was sent may still come

# What a server does to an attacker is not an error of the attack.
REBUFFED = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, ValueError)


@dataclass
class Target:
    port: int
    key: str | None
    until: float  # time.monotonic()
    stopped: Callable[[], bool]
    pause_factor: float = 1.0  # every pause is this many times longer
    did: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # promises that the server was seen to break

    def on(self) -> bool:
        return time.monotonic() < self.until and not self.stopped()

    def left(self) -> float:
        return max(self.until - time.monotonic(), 0.0)

    async def pause(self, seconds: float) -> None:
        end = min(time.monotonic() + seconds * self.pause_factor, self.until)
        while self.on() and (rest := end - time.monotonic()) > 0:
            await asyncio.sleep(min(rest, 0.5))

    def says(self, sentence: str) -> None:
        """Note a broken promise, once."""
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
        """Request line and headers, with the attacker's key if it has one."""
        authorization = [f"Authorization: Bearer {self.key}"] if self.key and key else []
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: siege", *authorization, *lines, "", ""]).encode()

    def post(self, path: str, body: bytes | dict[str, Any], *lines: str) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = ("Content-Type: application/json", f"Content-Length: {len(data)}")
        return self.head("POST", path, *kind, *lines) + data

    # -- connections

    async def connect(self, narrow: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection. A `narrow` one takes small segments into a small buffer, as one from far away does: what is
        not read then waits in the server, while loopback's own segments let its kernel keep megabytes."""
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
        """All of `data`, as fast as it is taken; raises once the server closes."""
        view = memoryview(data)
        for start in range(0, len(data), PIECE):
            if not self.on() and start:
                return
            writer.write(view[start : start + PIECE])
            async with asyncio.timeout(self.left() + LAST_ANSWERS):
                await writer.drain()
            self.did["bytes"] += min(PIECE, len(data) - start)

    async def answer(self, reader: asyncio.StreamReader, seconds: float = 30.0) -> tuple[int, bytes]:
        """Status and body of one answer; raises when none comes."""
        async with asyncio.timeout(min(seconds, self.left() + LAST_ANSWERS)):
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            body = await reader.readexactly(length)
        self.did[f"answer {status}"] += 1
        return status, body

    async def ask(self, request: bytes) -> None:
        """One request on a connection of its own, and its answer."""
        with self.rebuffed():
            async with self.connection() as (reader, writer):
                await self.write(writer, request)
                await self.answer(reader)

    async def keep_asking(self, request: bytes, pause: float = 0.02) -> None:
        """The same request over and over on one connection, on another where that ends."""
        while self.on():
            with self.rebuffed():
                async with self.connection() as (reader, writer):
                    while self.on():
                        writer.write(request)
                        await self.answer(reader)
                        await self.pause(pause)
            await self.pause(pause)

    async def pour(self, start: bytes, filler: bytes, total: int, end: bytes = b"", read: bool = True) -> None:
        """`start`, then `filler` over and over up to `total` bytes, then `end`, on one connection."""
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
    """A connection from which nothing is read, and what the kernel knows of it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        # a descriptor of our own: the transport's keeps what it must not be asked
        self.sock = socket.fromfd(writer.get_extra_info("socket").fileno(), socket.AF_INET, socket.SOCK_STREAM)

    def close(self) -> None:
        self.sock.close()

    def held(self) -> bool:
        """Whether the server still holds its end."""
        established = 1
        return bool(self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == established)

    def is_held(self) -> bool:
        """Whether a process still holds the server's end. What its kernel gave up by itself, because nothing was taken,
        it tells nobody; and what was closed it may go on offering for a while."""
        ends = f":{self.sock.getpeername()[1]:04X}", f":{self.sock.getsockname()[1]:04X}"
        with open("/proc/net/tcp") as table:
            for line in table:
                local, remote, inode = (fields := line.split())[1], fields[2], fields[9]
                if local.endswith(ends[0]) and remote.endswith(ends[1]):
                    return inode != "0"
        return False

    def waiting(self) -> int:
        """Bytes that have arrived here and are not read."""
        found = array.array("i", [0])
        fcntl.ioctl(self.sock.fileno(), termios.FIONREAD, found)
        return found[0]

    def status(self) -> str:
        """The status of the answer that waits there."""
        with contextlib.suppress(OSError):
            return self.sock.recv(12, socket.MSG_PEEK | socket.MSG_DONTWAIT)[9:12].decode(errors="replace")
        return ""

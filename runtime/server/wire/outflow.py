"""The way out of a connection: what is written, how much the client has not taken, since when nothing moves."""

from __future__ import annotations

import asyncio
import time


class Outflow:
    """Writes to a transport that says when it holds too much, and when it can take more again."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.writable: asyncio.Event | None = None  # while it is paused
        self.written = 0  # bytes given to the transport
        self.taken = 0  # bytes that the kernel had taken of them at the last look
        self.moved = 0.0  # when it last took some, or there were none

    def open(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.moved = time.monotonic()

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.written += len(data)
        self.transport.write(data)

    @property
    def paused(self) -> bool:
        return self.writable is not None

    def pause(self) -> None:
        self.writable = asyncio.Event()

    def resume(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None

    async def drain(self) -> None:
        """Wait until the transport takes more."""
        if self.writable is not None:
            await self.writable.wait()

    def unsent(self) -> int:
        """Bytes that the client has not taken, nor the kernel for it."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def stalled(self, now: float) -> float:
        """For how many seconds, as far as earlier looks can tell, nothing of what is unsent has moved."""
        unsent = self.unsent()
        if not unsent or self.written - unsent != self.taken:
            self.taken, self.moved = self.written - unsent, now
        return now - self.moved

"""The way out of a connection: what is written, how much the client has not taken, since when nothing moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TURN_BYTES = 1 << 15  # that a turn of the loop keeps together


class Outflow:
    """Writes to a transport that says when it holds too much, and when it can take more again.

    What is written in one turn of the loop goes to the transport together: each time costs a call of the system, and
    wakes the client.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a transport yet.

        Args:
            soon: Schedules a call for the next iteration of the loop. None: data is written at once.
            clock: Seconds, as the caller of `stalled` measures them.
        """
        self.transport: asyncio.Transport | None = None
        self.soon = soon
        self.clock = clock
        self.turn: list[bytes] = []  # what was written in this turn, and its bytes
        self.held = 0
        self.writable: asyncio.Event | None = None  # while it is paused
        self.written = 0  # bytes given to the transport
        self.taken = 0  # bytes that the kernel had taken of them at the last look
        self.moved = 0.0  # when it last took some, or there were none

    def open(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.moved = self.clock()

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.written += len(data)
        if self.soon is None:
            self.transport.write(data)
            return
        if not self.turn:
            self.soon(self.flush)
        self.turn.append(data)
        self.held += len(data)
        if self.held >= TURN_BYTES:  # the transport has to learn of it, to say that it is too much
            self.flush()

    def flush(self) -> None:
        """Hand over what is left of this turn."""
        if self.turn and self.transport is not None:
            data, self.turn, self.held = b"".join(self.turn), [], 0
            if not self.transport.is_closing():
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
        return self.held + (0 if self.transport is None else self.transport.get_write_buffer_size())

    def stalled(self, now: float) -> float:
        """For how many seconds, as far as earlier looks can tell, nothing of what is unsent has moved."""
        unsent = self.unsent()
        if not unsent or self.written - unsent != self.taken:
            self.taken, self.moved = self.written - unsent, now
        return now - self.moved

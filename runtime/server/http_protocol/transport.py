"""The transport that uvicorn's protocol writes to: it joins writes, and measures what the client has not received."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

MAX_JOINED_BYTES = 1 << 15  # of writes of one event loop iteration


class TransportUser(Protocol):
    """The protocol of a connection."""

    def finish(self) -> None:
        """End the connection when all data has been sent."""

    def update_reading(self) -> None:
        """React to a change of `BufferedTransport.reading_paused`."""


class BufferedTransport(asyncio.Transport):
    """Wraps the event loop's transport.

    Data of one event loop iteration is written at once: each write costs a system call and wakes the client.

    Attributes:
        closing: The connection ends after the data that has been written.
        reading_paused: uvicorn has paused reading.
    """

    def __init__(
        self, transport: asyncio.Transport, user: TransportUser, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.transport = transport
        self.user: TransportUser | None = user
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.closing = False
        self.reading_paused = False
        self.joined: list[bytes] = []  # data of this iteration, and its size
        self.joined_bytes = 0
        self.written = 0  # bytes in total
        self.received = 0  # bytes that the kernel had accepted at the last call of `stalled_seconds`
        self.progressed = clock()  # when the kernel last accepted data, or all data had been sent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing() or not data:
            return
        self.written += len(data)
        if not self.joined:
            self.loop.call_soon(self.flush)
        self.joined.append(bytes(data))
        self.joined_bytes += len(data)
        if self.joined_bytes >= MAX_JOINED_BYTES:  # the event loop's transport has to apply flow control
            self.flush()

    def flush(self) -> None:
        """Pass joined data on."""
        if self.joined:
            data, self.joined, self.joined_bytes = b"".join(self.joined), [], 0
            if not self.transport.is_closing():
                self.transport.write(data)

    def unsent(self) -> int:
        """Bytes that the kernel has not accepted."""
        return self.joined_bytes + self.transport.get_write_buffer_size()

    def stalled_seconds(self, now: float) -> float:
        """Seconds without progress of unsent data, as far as earlier calls can tell."""
        unsent = self.unsent()
        if not unsent or self.written - unsent != self.received:
            self.received, self.progressed = self.written - unsent, now
        return now - self.progressed

    def close(self) -> None:
        if not self.is_closing() and self.user is not None:
            self.user.finish()

    def abort(self) -> None:
        self.closing = True
        self.transport.abort()

    def is_closing(self) -> bool:
        return self.closing or self.transport.is_closing()

    def pause_reading(self) -> None:
        self._set_paused(True)

    def resume_reading(self) -> None:
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        if paused != self.reading_paused and self.user is not None:
            self.reading_paused = paused
            self.user.update_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self.unsent()

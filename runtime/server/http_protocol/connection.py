"""A connection as its manager sees it: what it waits for, what it holds, and its transport."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from runtime.server.http_protocol.error_responses import HttpRejection

MAX_JOINED_BYTES = 1 << 15  # of writes of one event loop iteration


class Phase(IntEnum):
    """What a connection waits for. Connections are evicted in this order, for a new one those before ANSWER."""

    DRAINING = 0  # a rejected client reads the response
    HEAD = 1  # the first request, or the rest of a head
    IDLE = 2  # the next request
    BODY = 3  # the rest of a body
    CLOSING = 4  # the client receives the rest of the last response
    ANSWER = 5  # the application


class Connection(ABC):
    """State of a connection that `ConnectionManager` reads and sets.

    Attributes:
        client: Address and port of the peer.
        phase, since: What the connection waits for, and the time since when. The manager sets them.
        buffered: Bytes of incomplete and of pipelined requests. The manager sets it.
        unparsed: Received data that has not been passed to the parser.
        socket_paused: The socket is not read.
        is_new: No request has started.
        last_discard: Time when data was last received after the last response.
    """

    transport: BufferedTransport
    client: tuple[str, int] | None

    def __init__(self) -> None:
        self.phase = Phase.HEAD
        self.since = 0.0
        self.buffered = 0
        self.unparsed = b""
        self.socket_paused = False
        self.is_new = True
        self.last_discard = 0.0

    @property
    @abstractmethod
    def is_answering(self) -> bool:
        """Whether a request has no complete response yet."""

    @abstractmethod
    def update_reading(self) -> None:
        """Adapts to a change of the application's flow control."""

    @abstractmethod
    def reject(self, rejection: HttpRejection) -> None:
        """Ends the connection with this response, or without one if another one has begun."""

    @abstractmethod
    def shutdown(self) -> None:
        """Closes the connection after the response of its request, or at once without one."""

    @abstractmethod
    def finish(self) -> None:
        """Ends the connection when all data has been sent."""


class BufferedTransport(asyncio.Transport):
    """Wraps the event loop's transport.

    Data of one event loop iteration is written at once: each write costs a system call and wakes the client.

    Attributes:
        closing: The connection ends after the data that has been written.
    """

    def __init__(self, transport: asyncio.Transport, user: Connection, clock: Callable[[], float]) -> None:
        super().__init__()
        self.transport = transport
        self.user: Connection | None = user
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.closing = False
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
        self._update_reading()

    def resume_reading(self) -> None:
        self._update_reading()

    def _update_reading(self) -> None:
        """Pauses or resumes after uvicorn has changed `flow.read_paused`."""
        if self.user is not None:
            self.user.update_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.transport.get_extra_info(name, default)

"""Who stands at the door: libuv accepts one connection in each turn of the event loop, here all the others are let in.

Where turns are long, as under an attack, one a turn is too few, and probes would wait in the kernel behind strangers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from runtime.server.wire.limits import BACKLOG


class Door:
    """Accepts beside the loop's own server, on the socket that it listens on."""

    def __init__(
        self, listener: socket.socket, make_connection: Callable[[], asyncio.BaseProtocol], crowd: int
    ) -> None:
        """`listener` does not block. `crowd`: connections that are on their way in at once; the next turns bring
        more."""
        self.listener = listener
        self.crowd = crowd
        self.make_connection = make_connection
        self.entering: set[asyncio.Task[object]] = set()

    def let_in(self) -> None:
        """Accept those who wait now. Nobody does mostly, which costs one call."""
        with contextlib.suppress(OSError):  # nobody waits, or descriptors are short: the loop's server says so
            for _ in range(self.crowd - len(self.entering)):
                self._accept()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._enter(connection))
        self.entering.add(task)
        task.add_done_callback(self.entering.discard)

    async def _enter(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone by now
            await asyncio.get_running_loop().connect_accepted_socket(self.make_connection, connection)

    async def close(self) -> None:
        """Let in whom the kernel has accepted for us, and nobody after them: never more than it holds at a time."""
        with contextlib.suppress(OSError):
            for _ in range(BACKLOG):
                self._accept()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # at once, while closing takes a turn of the loop
        if self.entering:
            await asyncio.wait(self.entering)

"""Where connections come in that another process has accepted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable


class Hatch:
    """`source`: brings them, one with each byte; it does not block. `ended` is told of one that went on its way in."""

    def __init__(
        self, source: socket.socket, make_connection: Callable[[], asyncio.BaseProtocol], ended: Callable[[], None]
    ) -> None:
        self.source = source
        self.make_connection = make_connection
        self.ended = ended
        self.entering: set[asyncio.Task[object]] = set()

    def open(self) -> None:
        """Let them in from now on."""
        asyncio.get_running_loop().add_reader(self.source.fileno(), self.let_in)

    def let_in(self) -> None:
        """Those who wait now."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, files, _, _ = socket.recv_fds(self.source, 1, 1)
                if not data:
                    asyncio.get_running_loop().remove_reader(self.source.fileno())
                    return
                if not files:  # this process is short of descriptors, and the connection is gone
                    self.ended()
                for file in files:
                    connection = socket.socket(fileno=file)
                    connection.setblocking(False)
                    task = asyncio.get_running_loop().create_task(self._enter(connection))
                    self.entering.add(task)
                    task.add_done_callback(self.entering.discard)

    async def _enter(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self.make_connection, connection)
        except OSError:  # it has gone by now
            self.ended()

    async def close(self) -> None:
        """Let in those who have come, and nobody after them."""
        self.let_in()
        asyncio.get_running_loop().remove_reader(self.source.fileno())
        if self.entering:
            await asyncio.wait(self.entering)

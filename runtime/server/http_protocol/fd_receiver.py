"""Receives accepted sockets from another process over SCM_RIGHTS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable


class FdReceiver:
    """Registers received sockets with the event loop."""

    def __init__(
        self, source: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol], on_closed: Callable[[], None]
    ) -> None:
        """Creates a receiver.

        Args:
            source: Unix socket in non-blocking mode; each byte carries one descriptor.
            make_protocol: Creates the protocol of a connection.
            on_closed: Called for each connection that ended before it was registered.
        """
        self.source = source
        self.make_protocol = make_protocol
        self.on_closed = on_closed
        self.registering: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        """Receive sockets from now on."""
        asyncio.get_running_loop().add_reader(self.source.fileno(), self.accept_pending)

    def accept_pending(self) -> None:
        """Receive the sockets that are pending now."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, files, _, _ = socket.recv_fds(self.source, 1, 1)
                if not data:
                    asyncio.get_running_loop().remove_reader(self.source.fileno())
                    return
                if not files:  # no descriptor is free in this process, and the kernel has closed the connection
                    self.on_closed()
                for file in files:
                    connection = socket.socket(fileno=file)
                    connection.setblocking(False)
                    task = asyncio.get_running_loop().create_task(self._register(connection))
                    self.registering.add(task)
                    task.add_done_callback(self.registering.discard)

    async def _register(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self.make_protocol, connection)
        except OSError:  # the client has disconnected
            self.on_closed()

    async def close(self) -> None:
        """Register the sockets that have arrived, and receive no more."""
        self.accept_pending()
        asyncio.get_running_loop().remove_reader(self.source.fileno())
        if self.registering:
            await asyncio.wait(self.registering)

"""Accepts all pending connections per event loop iteration. libuv accepts one per iteration.

Under an attack, iterations are long. With one accept per iteration, probes would wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from runtime.server.http_protocol.limits import BACKLOG


class Acceptor:
    """Accepts connections on the listening socket of the event loop's own server."""

    def __init__(self, listener: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol], batch: int) -> None:
        """Creates an acceptor.

        Args:
            listener: A socket in non-blocking mode.
            make_protocol: Creates the protocol of a connection.
            batch: Maximum number of connections that are being registered at the same time.
        """
        self.listener = listener
        self.batch = batch
        self.make_protocol = make_protocol
        self.registering: set[asyncio.Task[object]] = set()

    def accept_pending(self) -> None:
        """Accept the connections that are pending now. Usually none is, which costs one system call."""
        with contextlib.suppress(OSError):  # none is pending, or no descriptor is free: the loop's server reports that
            for _ in range(self.batch - len(self.registering)):
                self._accept()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._register(connection))
        self.registering.add(task)
        task.add_done_callback(self.registering.discard)

    async def _register(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has disconnected
            await asyncio.get_running_loop().connect_accepted_socket(self.make_protocol, connection)

    async def close(self) -> None:
        """Accept what the kernel's queue holds, then close the listener."""
        with contextlib.suppress(OSError):
            for _ in range(BACKLOG):
                self._accept()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # closing alone takes effect in the next loop iteration
        if self.registering:
            await asyncio.wait(self.registering)

"""Accepts all pending connections per event loop iteration, or with other processes a fraction of them.

libuv accepts one per iteration. Under an attack, iterations are long, and probes would wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
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


RETRY_SECONDS = 0.02  # after an error, such as a lack of descriptors
_BACKLOG_OFFSET = 24  # of tcpi_unacked in struct tcp_info: of a listener, the connections that wait


class SharedAcceptor(Acceptor):
    """Accepts connections on a listening socket on which other processes accept too.

    The kernel wakes all of them. A process with more open connections waits longer before it accepts, so that those
    with fewer accept first. No process takes more than its fraction of the connections that wait.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        batch: int,
        processes: int,
        num_open: Callable[[], int],
    ) -> None:
        """Creates an acceptor.

        Args:
            listener: A socket in non-blocking mode.
            make_protocol: Creates the protocol of a connection.
            batch: Maximum number of connections that are being registered at the same time.
            processes: Number of processes that accept.
            num_open: Returns the number of open connections of this process.
        """
        super().__init__(listener, make_protocol, batch)
        self.processes = processes
        self.num_open = num_open
        self.loop = asyncio.get_running_loop()
        self.closed = False

    def start(self) -> None:
        """Accept connections from now on."""
        if not self.closed:
            self.loop.add_reader(self.listener.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        delay = self.num_open().bit_length() / 1000
        if not delay:
            self._accept_fraction()
            return
        self.loop.remove_reader(self.listener.fileno())
        self.loop.call_later(delay, self._accept_and_restart)

    def _accept_and_restart(self) -> None:
        if not self.closed:
            self.start()
            self._accept_fraction()

    def _accept_fraction(self) -> None:
        try:
            for _ in range(min(-(-self._num_waiting() // self.processes), self.batch - len(self.registering))):
                self._accept()
        except BlockingIOError:  # other processes have accepted them
            pass
        except OSError:
            self.loop.remove_reader(self.listener.fileno())
            self.loop.call_later(RETRY_SECONDS, self._accept_and_restart)

    def _num_waiting(self) -> int:
        """Number of connections in the kernel's queue, 1 where the system does not report it."""
        with contextlib.suppress(OSError, AttributeError):
            info = self.listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BACKLOG_OFFSET + 4)
            return int.from_bytes(info[_BACKLOG_OFFSET:], sys.byteorder)
        return 1

    async def close(self) -> None:
        self.closed = True
        self.loop.remove_reader(self.listener.fileno())
        await super().close()

"""The HTTP server: accepts connections, which uvicorn serves. Its import takes most of a front end's start-up time.

A server accepts all pending connections per event loop iteration, or with other processes a fraction of them. libuv
accepts one per iteration. Under an attack, iterations are long, and probes would wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import sys
import time
from collections.abc import Callable, Generator
from typing import Any, cast

import uvicorn

from runtime.config import ServerConfig
from runtime.server.app import make_app
from runtime.server.context import ServerContext
from runtime.server.engine_client.client import EngineClient
from runtime.server.http_protocol.connection_manager import ConnectionManager
from runtime.server.http_protocol.guarded_protocol import GuardedProtocol
from runtime.server.http_protocol.limits import BACKLOG, DEFAULT_MAX_CONNECTIONS, Limits, accept_batch
from runtime.server.metrics import RequestMetrics
from runtime.server.middleware.auth import ApiKeys

RETRY_SECONDS = 0.02  # after an error, such as a lack of descriptors
_BACKLOG_OFFSET = 24  # of tcpi_unacked in struct tcp_info: of a listener, the connections that wait


class Acceptor:
    """Accepts connections on a listening socket, on which other processes may accept too.

    The kernel wakes all of them. A process with more open connections waits longer before it accepts, so that those
    with fewer accept first. No process takes more than its fraction of the connections that wait.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        batch: int,
        processes: int = 1,
        num_open: Callable[[], int] = lambda: 0,
    ) -> None:
        """Creates an acceptor that does not accept yet.

        Args:
            listener: A listening socket.
            make_protocol: Creates the protocol of a connection.
            batch: Maximum number of connections that are being registered at the same time.
            processes: Number of processes that accept.
            num_open: Returns the number of open connections of this process, if other processes accept too.
        """
        listener.setblocking(False)  # for all processes: they share the file description
        self.listener = listener
        self.make_protocol = make_protocol
        self.batch = batch
        self.processes = processes
        self.num_open = num_open
        self.loop = asyncio.get_running_loop()
        self.registering: set[asyncio.Task[object]] = set()
        self.closed = False

    def start(self) -> None:
        """Accept connections from now on."""
        if not self.closed:
            self.loop.add_reader(self.listener.fileno(), self._on_readable)

    def stop(self) -> None:
        """Accept no further connections."""
        self.closed = True
        self.loop.remove_reader(self.listener.fileno())

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

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        task = self.loop.create_task(self._register(connection))
        self.registering.add(task)
        task.add_done_callback(self.registering.discard)

    async def _register(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has disconnected
            await self.loop.connect_accepted_socket(self.make_protocol, connection)

    async def close(self) -> None:
        """Accept what the kernel's queue holds, then close the listener."""
        self.stop()
        with contextlib.suppress(OSError):
            for _ in range(BACKLOG):
                self._accept()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # closing alone takes effect in the next loop iteration
        if self.registering:
            await asyncio.wait(self.registering)


class HttpServer(uvicorn.Server):
    """uvicorn's server with limits on connections. It installs no signal handlers."""

    def __init__(
        self,
        app: Any,
        limits: Limits,
        observed: RequestMetrics,
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a server that does not listen yet.

        Args:
            app: The ASGI application.
            limits: The limits of connections.
            observed: Metrics of connections.
            processes: Number of processes that accept connections on the same listening socket.
            clock: Returns seconds, for all timeouts but the idle one.
        """
        self.manager = ConnectionManager(limits, observed, clock)
        self.processes = processes
        self.acceptor: Acceptor | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=GuardedProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=cast(Any, limits.idle_seconds),
                timeout_graceful_shutdown=1,
            )
        )
        self.server_state.connections = cast(Any, self.manager.open)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        self.manager.check_timeouts()
        return await super().on_tick(counter)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on a listening socket."""
        (listener,) = sockets or []
        self.acceptor = self._make_acceptor(listener)
        self.acceptor.start()
        await super().serve([])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.acceptor is not None:
            self.acceptor.stop()
        await super().shutdown(sockets)

    async def close_listener(self, listener: socket.socket) -> None:
        """Accept no further connections, and serve those in the kernel's queue."""
        await (self.acceptor or self._make_acceptor(listener)).close()

    def _make_acceptor(self, listener: socket.socket) -> Acceptor:
        batch = accept_batch(self.manager.limits.connections)
        num_open = (lambda: 0) if self.processes == 1 else (lambda: len(self.manager.open))
        return Acceptor(listener, self.make_protocol, batch, self.processes, num_open)

    def num_answering(self) -> int:
        """Number of connections with an unanswered request, whether or not the application has started it."""
        return sum(connection.is_answering for connection in self.manager.open)

    def close_idle(self) -> None:
        """Close connections without a request. The others close after their response."""
        for connection in list(self.manager.open):
            connection.shutdown()

    def make_protocol(self) -> GuardedProtocol:
        """Creates the protocol of an accepted connection."""
        return GuardedProtocol(
            self.manager, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def make_http(config: ServerConfig, frontend: EngineClient) -> tuple[ServerContext, HttpServer]:
    """Returns a server without a socket, and the context of its routes."""
    keys = ApiKeys(config.api_key, config.api_key_file, config.keys_in_file)
    keys.watch()
    context = ServerContext(config, frontend, keys)
    limits = Limits(connections=config.max_connections or DEFAULT_MAX_CONNECTIONS)
    limits = dataclasses.replace(limits, buffered_bytes=limits.buffered_bytes // config.frontend_processes)
    return context, HttpServer(make_app(context), limits, frontend.request_metrics, config.frontend_processes)

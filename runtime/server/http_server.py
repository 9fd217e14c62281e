"""uvicorn with limits on connections, and what accepts them. Importing it is most of a front end's start-up time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Generator
from typing import Any, cast

import uvicorn

from runtime.config import ServerConfig
from runtime.server.app import make_app
from runtime.server.context import ServerContext
from runtime.server.engine_client.client import EngineClient
from runtime.server.http_protocol.connection_manager import ConnectionManager
from runtime.server.http_protocol.fd_receiver import FdReceiver
from runtime.server.http_protocol.guarded_protocol import GuardedProtocol
from runtime.server.http_protocol.limits import BACKLOG, DEFAULT_MAX_CONNECTIONS, Limits, accept_batch
from runtime.server.metrics import RequestMetrics
from runtime.server.middleware.auth import ApiKeys


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


class HttpServer(uvicorn.Server):
    """uvicorn's server with limits on connections. It installs no signal handlers."""

    def __init__(
        self,
        app: Any,
        limits: Limits,
        observed: RequestMetrics,
        on_closed: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a server that does not listen yet.

        Args:
            app: The ASGI application.
            limits: The limits of connections.
            observed: Metrics of connections.
            on_closed: Called for each connection that has ended. None unless another process accepts the connections.
            clock: Returns seconds, for all timeouts but the idle one.
        """
        self.manager = ConnectionManager(limits, observed, on_closed, clock)
        self.on_closed = on_closed
        self.acceptor: Acceptor | FdReceiver | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, self._make_accepted_protocol),
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
        self.servers = []  # a signal may arrive before uvicorn has started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        self.manager.check_timeouts()
        return await super().on_tick(counter)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on a listening socket, or on the connections that arrive over a Unix socket."""
        (source,) = sockets or []
        self.acceptor = self._make_acceptor(source)
        if isinstance(self.acceptor, FdReceiver):
            self.acceptor.start()
            sockets = []
        await super().serve(sockets)

    async def close_listener(self, source: socket.socket) -> None:
        """Accept no further connections, and serve those in the kernel's queue."""
        await (self.acceptor or self._make_acceptor(source)).close()
        for server in self.servers:
            server.close()

    def _make_acceptor(self, source: socket.socket) -> Acceptor | FdReceiver:
        if self.on_closed is not None:
            return FdReceiver(source, self.make_protocol, self.on_closed)
        return Acceptor(source, self.make_protocol, accept_batch(self.manager.limits.connections))

    def num_answering(self) -> int:
        """Number of connections with an unanswered request, whether or not the application has started it."""
        return sum(connection.is_answering for connection in self.manager.open)

    def close_idle(self) -> None:
        """Close connections without a request. The others close after their response."""
        for connection in list(self.manager.open):
            connection.shutdown()

    def _make_accepted_protocol(self, **arguments: Any) -> GuardedProtocol:
        """uvicorn calls it for each connection that the event loop has accepted."""
        assert self.acceptor is not None
        self.acceptor.accept_pending()
        return GuardedProtocol(self.manager, **arguments)

    def make_protocol(self) -> GuardedProtocol:
        """Creates the protocol of a connection that was accepted by other means."""
        return GuardedProtocol(
            self.manager, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def make_http(
    config: ServerConfig, frontend: EngineClient, on_closed: Callable[[], None] | None = None
) -> tuple[ServerContext, HttpServer]:
    """Returns a server without a socket, and the context of its routes. `on_closed`: see `HttpServer`."""
    keys = ApiKeys(config.api_key, config.api_key_file, config.keys_in_file)
    keys.watch()
    context = ServerContext(config, frontend, keys)
    limits = Limits(connections=config.max_connections or DEFAULT_MAX_CONNECTIONS)
    limits = dataclasses.replace(limits, buffered_bytes=limits.buffered_bytes // config.frontend_processes)
    return context, HttpServer(make_app(context), limits, frontend.request_metrics, on_closed)

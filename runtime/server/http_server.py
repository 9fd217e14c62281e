"""The HTTP side: service, application and uvicorn around them. Importing it is most of a frontend's start-up time."""

from __future__ import annotations

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
from runtime.server.http_protocol.acceptor import Acceptor, SharedAcceptor
from runtime.server.http_protocol.connection_manager import ConnectionManager
from runtime.server.http_protocol.guarded_protocol import GuardedProtocol
from runtime.server.http_protocol.limits import DEFAULT_MAX_CONNECTIONS, Limits, accept_batch
from runtime.server.metrics import RequestMetrics
from runtime.server.middleware.auth import ApiKeys


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
        """Serve on a listening socket."""
        (listener,) = sockets or []
        self.acceptor = self._make_acceptor(listener)
        if isinstance(self.acceptor, SharedAcceptor):
            self.acceptor.start()
            sockets = []
        await super().serve(sockets)

    async def close_listener(self, listener: socket.socket) -> None:
        """Accept no further connections, and serve those in the kernel's queue."""
        await (self.acceptor or self._make_acceptor(listener)).close()
        for server in self.servers:
            server.close()

    def _make_acceptor(self, listener: socket.socket) -> Acceptor:
        batch = accept_batch(self.manager.limits.connections)
        if self.processes == 1:
            return Acceptor(listener, self.make_protocol, batch)
        return SharedAcceptor(listener, self.make_protocol, batch, self.processes, lambda: len(self.manager.open))

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


def make_http(config: ServerConfig, frontend: EngineClient) -> tuple[ServerContext, HttpServer]:
    """Returns a server without a socket, and the context of its routes."""
    keys = ApiKeys(config.api_key, config.api_key_file, config.keys_in_file)
    keys.watch()
    context = ServerContext(config, frontend, keys)
    limits = Limits(connections=config.max_connections or DEFAULT_MAX_CONNECTIONS)
    limits = dataclasses.replace(limits, buffered_bytes=limits.buffered_bytes // config.frontend_processes)
    return context, HttpServer(make_app(context), limits, frontend.request_metrics, config.frontend_processes)

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
from runtime.server.metrics import RequestMetrics
from runtime.server.middleware.auth import ApiKeys
from runtime.server.wire.connection import Connection
from runtime.server.wire.door import Door
from runtime.server.wire.hatch import Hatch
from runtime.server.wire.limits import MOST_CONNECTIONS, Limits, crowd
from runtime.server.wire.roster import Roster


class HttpServer(uvicorn.Server):
    """uvicorn with connections of ours, and without its own view of signals.

    Attributes:
        ended: Called for each connection that has ended. None unless another process accepts the connections.
    """

    def __init__(
        self,
        app: Any,
        limits: Limits,
        observed: RequestMetrics,
        ended: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A server without connections. `app` is the ASGI application; the other arguments are those of `Roster`."""
        self.roster = Roster(limits, observed, ended, clock)
        self.ended = ended
        self.door: Door | Hatch | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, self._accepted),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        self.server_state.connections = cast(Any, self.roster.open)
        self.servers = []  # a signal may ask for them before uvicorn has started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        self.roster.sweep()
        return await super().on_tick(counter)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on one listening socket, or those that one brings."""
        (entrance,) = sockets or []
        self.door = door = self._open(entrance)
        if isinstance(door, Hatch):
            door.open()
            sockets = []
        await super().serve(sockets)

    async def close_entrance(self, entrance: socket.socket) -> None:
        """Take no more, but serve the connections that have been accepted for us already."""
        await (self.door or self._open(entrance)).close()
        for server in self.servers:
            server.close()

    def _open(self, entrance: socket.socket) -> Door | Hatch:
        if self.ended is not None:
            return Hatch(entrance, self._connection, self.ended)
        return Door(entrance, self._connection, crowd(self.roster.limits.connections))

    def at_work(self) -> int:
        """Connections with a request that has not been answered, whether or not the application has begun with it."""
        return sum(connection.current is not None for connection in self.roster.open)

    def close_idle(self) -> None:
        """Close the connections on which nothing is under way; the others close after their answer."""
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def _accepted(self, **others: Any) -> Connection:
        """uvicorn's way to a connection, with what it needs: the loop has accepted one."""
        assert self.door is not None
        self.door.let_in()
        return Connection(roster=self.roster, **others)

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state, self.roster)


def make_http(
    config: ServerConfig, frontend: EngineClient, ended: Callable[[], None] | None = None
) -> tuple[ServerContext, HttpServer]:
    """A server ready to be given its socket, and the service its routes use. `ended`: see `HttpServer`."""
    keys = ApiKeys(config.api_key, config.api_key_file, config.keys_in_file)
    keys.watch()
    context = ServerContext(config, frontend, keys)
    limits = Limits(connections=config.max_connections or MOST_CONNECTIONS)
    limits = dataclasses.replace(limits, held_bytes=limits.held_bytes // config.frontend_processes)
    return context, HttpServer(make_app(context), limits, frontend.request_metrics, ended)

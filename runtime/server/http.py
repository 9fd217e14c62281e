"""The HTTP side: service, application and uvicorn around them. Importing it is most of a frontend's start-up time."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator
from typing import Any, cast

import uvicorn

from runtime.config import ServerConfig
from runtime.server.app import make_app
from runtime.server.frontend import Frontend
from runtime.server.keys import Keys
from runtime.server.observed import Observed
from runtime.server.service import Service
from runtime.server.wire.connection import Connection
from runtime.server.wire.door import Door
from runtime.server.wire.limits import MOST_CONNECTIONS, Limits, crowd
from runtime.server.wire.roster import Roster


class HttpServer(uvicorn.Server):
    """uvicorn with connections of ours, and without its own view of signals."""

    def __init__(self, app: Any, limits: Limits, observed: Observed) -> None:
        self.roster = Roster(limits, observed)
        self.door: Door | None = None
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
        """Serve on one listening socket."""
        (listener,) = sockets or []
        self.door = self._open(listener)
        await super().serve(sockets)

    async def close_listener(self, listener: socket.socket) -> None:
        """Listen no more, but serve the connections that the kernel has already accepted for us."""
        await (self.door or self._open(listener)).close()
        for server in self.servers:
            server.close()

    def _open(self, listener: socket.socket) -> Door:
        return Door(listener, self._connection, crowd(self.roster.limits.connections))

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


def make_http(config: ServerConfig, frontend: Frontend) -> tuple[Service, HttpServer]:
    """A server ready to be given its listening socket, and the service its routes use."""
    keys = Keys(config.api_key, config.api_key_file, config.keys_in_file)
    keys.watch()
    service = Service(config, frontend, keys)
    limits = Limits(connections=config.max_connections or MOST_CONNECTIONS)
    return service, HttpServer(make_app(service), limits, frontend.observed)

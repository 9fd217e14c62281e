"""The HTTP side: service, application and uvicorn around them. Importing it is most of a frontend's start-up time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from typing import Any, cast

import uvicorn

from runtime.config import ServerConfig
from runtime.server.app import make_app
from runtime.server.frontend import Frontend
from runtime.server.keys import Keys
from runtime.server.metrics import Metrics
from runtime.server.service import Service
from runtime.server.wire.connection import Connection
from runtime.server.wire.limits import MOST_CONNECTIONS, Limits
from runtime.server.wire.roster import Roster


class HttpServer(uvicorn.Server):
    """uvicorn with connections of ours, and without its own view of signals."""

    def __init__(self, app: Any, limits: Limits, metrics: Metrics) -> None:
        self.roster = Roster(limits, metrics)
        self.make_connection = functools.partial(Connection, roster=self.roster)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, self.make_connection),
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

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def on_tick(self, counter: int) -> bool:
        self.roster.sweep()
        return await super().on_tick(counter)

    async def close_listener(self, listener: socket.socket) -> None:
        """Listen no more, but serve the connections that the kernel has already accepted for us."""
        waiting = []
        with contextlib.suppress(OSError):
            while True:
                waiting.append(listener.accept()[0])
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # at once, while closing takes a turn of the loop
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for connection in waiting:
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(self._protocol, connection)

    def at_work(self) -> int:
        """Connections with a request that has not been answered, whether or not the application has begun with it."""
        return sum(connection.current is not None for connection in self.roster.open)

    def close_idle(self) -> None:
        """Close the connections on which nothing is under way; the others close after their answer."""
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def _protocol(self) -> Connection:
        return self.make_connection(self.config, self.server_state, self.lifespan.state)


def make_http(config: ServerConfig, frontend: Frontend) -> tuple[Service, HttpServer]:
    """A server ready to be given its listening socket, and the service its routes use."""
    keys = Keys(config.api_key, config.api_key_file, config.keys_in_file)
    keys.watch()
    service = Service(config, frontend, keys)
    limits = Limits(connections=config.max_connections or MOST_CONNECTIONS)
    return service, HttpServer(make_app(service), limits, frontend.metrics)

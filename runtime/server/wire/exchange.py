"""One request and its answer, as the ASGI application sees them."""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from runtime.server.wire import refusal
from runtime.server.wire.parsing import Head

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent, HTTPScope

    from runtime.server.wire.connection import Connection

log = logging.getLogger("uvicorn.error")


class Exchange(RequestResponseCycle):
    """uvicorn's, over a connection of ours in the place of transport and flow control.

    An answer that begins before the request has ended closes the connection: the rest of a refused body is not waited
    for as if a next request would follow it.
    """

    def __init__(self, connection: Connection, head: Head, size: int) -> None:
        """Raises Refused for an address that is none."""
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in head.headers)
        super().__init__(
            scope=_scope(connection, head),
            transport=cast(Any, connection),
            flow=cast(Any, connection),
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=expects and head.version != "1.0",
            keep_alive=head.keep_alive,
            on_response=connection.answered,
        )
        self.connection = connection
        self.first = connection.fresh  # of its connection's requests
        self.size = size  # bytes: of its head, and of its body what has come

    def begin(self) -> None:
        """Set the application to work on it, unless the client has gone by now."""
        if self.disconnected:
            return
        tasks = self.connection.server_state.tasks
        task = self.connection.loop.create_task(self.run_asgi(self.connection.app))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def send(self, message: ASGISendEvent) -> None:
        if self.more_body and not self.response_started:
            self.keep_alive = False
        await super().send(message)

    def add(self, data: bytes) -> None:
        """More of the body."""
        self.body += data
        self.size += len(data)
        self.message_event.set()

    def end(self) -> None:
        """The body is complete."""
        self.more_body = False
        self.message_event.set()

    def forsake(self) -> None:
        """Nobody waits for the answer any more: the application sees a disconnect, what it sends goes nowhere."""
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()


def _scope(connection: Connection, head: Head) -> HTTPScope:
    try:
        url = httptools.parse_url(head.url)
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
    except (httptools.HttpParserError, UnicodeDecodeError):
        raise refusal.invalid() from None
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "server": connection.server,
        "client": connection.client,
        "scheme": "http",
        "method": head.method,
        "root_path": "",
        "path": urllib.parse.unquote(path),
        "raw_path": raw_path,
        "query_string": url.query or b"",
        "headers": head.headers,
        "state": connection.app_state.copy(),
    }

"""uvicorn's HTTP/1.1 protocol with two habits of ours: a JSON object for broken HTTP, and no waiting for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runtime.server.errors import error_object

FIRST_REQUEST_SECONDS = 30.0  # a connection whose request line and headers take longer is closed


class Protocol(HttpToolsProtocol):
    """One connection."""

    first_request: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.first_request = self.loop.call_later(FIRST_REQUEST_SECONDS, self._nothing_came)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._forget_timer()
        super().on_headers_complete()

    def _forget_timer(self) -> None:
        if self.first_request is not None:
            self.first_request.cancel()
            self.first_request = None

    def _nothing_came(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(error_object(400, "what was sent is not an HTTP/1.1 request", code="invalid_http"))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

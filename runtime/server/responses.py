"""The two kinds of answer: a JSON object and a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runtime.errors import RequestError
from runtime.server.errors import error_body, error_headers
from runtime.server.jobs import disconnected

KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(content), status, headers, media_type="application/json")


def error_response(error: RequestError) -> Response:
    return Response(error_body(error), error.status, error_headers(error), media_type="application/json")


def event(content: Any) -> bytes:
    return b"data: " + _encode(content) + b"\n\n"


class EventStream(Response):
    """Sends what `chunks` yields as it comes, and comments while nothing comes; leaves `job` whatever happens.

    The job belongs to the response and not to the generator: one that was never started runs no ``finally``.
    """

    media_type = "text/event-stream"

    def __init__(self, job: AbstractContextManager[Any], chunks: AsyncIterator[bytes]) -> None:
        self.job = job
        self.chunks = chunks
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["job"] = self.job  # the log tells of it
        sender = asyncio.create_task(self._send_all(send))
        listener = asyncio.create_task(disconnected(receive))
        with self.job:
            try:
                await asyncio.wait((sender, listener), return_when=asyncio.FIRST_COMPLETED)
            finally:
                listener.cancel()
                sender.cancel()
                await asyncio.gather(sender, listener, return_exceptions=True)
        if not sender.cancelled() and (error := sender.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        last = asyncio.get_running_loop().time()

        async def put(data: bytes, more: bool = True) -> None:
            nonlocal last
            await send({"type": "http.response.body", "body": data, "more_body": more})
            last = asyncio.get_running_loop().time()

        async def keep_alive() -> None:
            while True:
                quiet = asyncio.get_running_loop().time() - last
                await asyncio.sleep(KEEP_ALIVE_SECONDS - quiet)
                if asyncio.get_running_loop().time() - last >= KEEP_ALIVE_SECONDS:
                    await put(b": keep-alive\n\n")

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        keeper = asyncio.create_task(keep_alive())
        try:
            async for data in self.chunks:
                await put(data)
            keeper.cancel()
            await put(b"", more=False)
        finally:
            keeper.cancel()
            await self.chunks.aclose()  # type: ignore[attr-defined]

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


def error_response(error: RequestError, path: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """`path`: of the route that was asked, whose clients know one kind of error object."""
    merged = {**error_headers(error), **(headers or {})}
    return Response(error_body(error, path), error.status, merged, media_type="application/json")


def event(content: Any) -> bytes:
    return b"data: " + _encode(content) + b"\n\n"


def named_event(kind: str, **fields: Any) -> bytes:
    """An event that says its name twice, as ``type`` too."""
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


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
        sender, over, gone = asyncio.current_task(), False, False
        assert sender is not None

        def leave(_: asyncio.Task[None]) -> None:
            nonlocal gone
            if not over:
                gone = True
                sender.cancel()

        listener = asyncio.create_task(disconnected(receive))
        listener.add_done_callback(leave)
        with self.job:
            try:
                await self._send_all(send)
            except asyncio.CancelledError:
                if not gone or sender.uncancel():  # somebody else ends it
                    raise
            finally:
                over = True
                listener.cancel()

    async def _send_all(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        timer: asyncio.TimerHandle
        comment: asyncio.Task[None] | None = None

        async def put(data: bytes, more: bool = True) -> None:
            nonlocal last
            await send({"type": "http.response.body", "body": data, "more_body": more})
            last = loop.time()

        def keep_alive() -> None:
            nonlocal timer, comment
            quiet = loop.time() - last
            if quiet >= KEEP_ALIVE_SECONDS:
                quiet = 0.0
                if comment is None or comment.done():  # else the client has not taken the last one yet
                    comment = loop.create_task(put(b": keep-alive\n\n"))
            timer = loop.call_later(KEEP_ALIVE_SECONDS - quiet, keep_alive)

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        timer = loop.call_later(KEEP_ALIVE_SECONDS, keep_alive)
        try:
            async for data in self.chunks:
                await put(data)
            timer.cancel()
            await put(b"", more=False)
        finally:
            timer.cancel()
            if comment is not None:
                comment.cancel()
            await self.chunks.aclose()  # type: ignore[attr-defined]

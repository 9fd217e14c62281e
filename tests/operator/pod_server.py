"""HTTP servers in the place of engine pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def serve(path: str, handler: Handler, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Serves a path at the address, and yields the port."""
    app = web.Application()
    app.router.add_get(path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def answer(text: str, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return handler

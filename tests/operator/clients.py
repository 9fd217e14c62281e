"""A small HTTP server, and clients of the operator with credentials of a test."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from unmask_operator.kube.client import Client
from unmask_operator.kube.credentials import BEARER, Credentials, Identity

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(text: str, status: int = 200) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return handle


@contextlib.asynccontextmanager
async def http_server(
    handle: Handler, tls: ssl.SSLContext | None = None, path: str = "/{tail:.*}", host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Yields the port of a server that answers requests of a path, by default of every path, with `handle`."""
    app = web.Application()
    app.router.add_route("*", path, handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncIterator[Client]:
    """Yields a client that uses this kubeconfig, and reads it again for new credentials."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        credentials = Credentials()
        await credentials.load()
        client = Client(credentials)
        try:
            yield client
        finally:
            await client.close()


class ScriptedCredentials(Credentials):
    """Fake credentials: each `load` uses the next token or raises the exception in its position. The last one stays."""

    def __init__(self, server: str, *tokens: str | Exception) -> None:
        super().__init__()
        self.configuration.host = server
        self.tokens = list(tokens)

    async def load(self) -> None:
        token = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        if isinstance(token, Exception):
            raise token
        self.configuration.api_key[BEARER] = f"Bearer {token}"
        self.current = Identity(f"Bearer {token}")

    async def refresh(self) -> None:
        """Does nothing, so that credentials are read again only when a test calls `load`."""

"""Large bodies that wait to be parsed: in which order, how many, and for whom."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from runtime.errors import RequestError
from runtime.server import preparing
from runtime.server.jobs import ClientGone
from runtime.server.schemas import TokenizeRequest
from runtime.server.service import Service

LARGE, SMALLER = 2**20, 2**14  # bytes
WAIT = 30.0


class Post:
    """A request whose body has arrived, and whose client goes away when told to."""

    def __init__(self, size: int) -> None:
        self.gone = asyncio.Event()
        self._body: bytes | None = json.dumps({"prompt": "x" * size}).encode()
        self.request = Request({"type": "http", "method": "POST", "headers": []}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Server:
    """What of a service reads bodies."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.service: Any = SimpleNamespace(preparer=preparing.Preparer(lambda: pytest.fail("no engine is asked")))

    async def read(self, post: Post) -> None:
        body = await Service.body(self.service, post.request, TokenizeRequest)
        self.order.append(len(body.prompt or ""))


def test_a_shorter_body_does_not_wait_for_longer_ones() -> None:
    async def everything() -> list[int]:
        server = Server()
        await asyncio.gather(*(server.read(Post(size)) for size in (LARGE, LARGE + 1, LARGE + 2, SMALLER)))
        return server.order

    assert asyncio.run(everything()) == [LARGE, SMALLER, LARGE + 1, LARGE + 2]


def test_a_body_whose_client_is_gone_is_not_parsed() -> None:
    async def everything() -> None:
        server = Server()
        posts = [Post(LARGE) for _ in range(8)]
        for post in posts[1:-1]:
            post.gone.set()  # with its body there
        results = await asyncio.wait_for(
            asyncio.gather(*(server.read(post) for post in posts), return_exceptions=True), WAIT
        )
        assert [type(result) for result in results] == [type(None), *[ClientGone] * 6, type(None)]
        assert len(server.order) == 2
        await server.read(Post(LARGE))  # the line goes on

    asyncio.run(everything())


def test_the_bytes_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "MAX_WAITING_BODIES", 2 * LARGE + 100, raising=False)

    async def everything() -> None:
        server = Server()
        results = await asyncio.gather(*(server.read(Post(LARGE)) for _ in range(4)), return_exceptions=True)
        assert results[:3] == [None] * 3  # one is parsed, two wait
        assert isinstance(results[3], RequestError)
        assert (results[3].status, results[3].code) == (429, "queue_full")
        await server.read(Post(LARGE))

    asyncio.run(everything())

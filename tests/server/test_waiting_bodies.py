"""Tests of large bodies that wait to be parsed: their order, their size, and disconnected clients."""

import asyncio
import contextlib
import json
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.server.admin.protocol import TokenizeRequest
from runtime.server.metrics import RequestMetrics
from runtime.server.openai import chat, completions
from runtime.server.openai.protocol import ChatRequest, CompletionRequest
from runtime.server.serving import preprocessor
from runtime.server.serving.context import ServerContext
from runtime.server.serving.request_body import ClientGone
from runtime.server.serving.routes import fast_routes
from runtime.server.serving.specs import Generation
from tests.request.test_sampling_params import INFO
from tests.wait import TIMEOUT

LARGE, SMALLER = 2**20, 2**14  # bytes


class Post:
    """A request whose body has arrived, and whose client disconnects when the test sets `gone`."""

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
    """The part of a server that reads bodies. It records the order in which they are parsed."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.service: Any = SimpleNamespace(
            preprocessor=preprocessor.Preprocessor(lambda: pytest.fail("no engine is asked"))
        )

    async def read(self, post: Post) -> None:
        body = await ServerContext.body(self.service, post.request, TokenizeRequest)
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
            post.gone.set()  # after its body has arrived
        results = await asyncio.wait_for(
            asyncio.gather(*(server.read(post) for post in posts), return_exceptions=True), TIMEOUT
        )
        assert [type(result) for result in results] == [type(None), *[ClientGone] * 6, type(None)]
        assert len(server.order) == 2
        await server.read(Post(LARGE))  # the queue still works

    asyncio.run(everything())


def test_the_bytes_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preprocessor, "MAX_WAITING_BODIES", 2 * LARGE + 100, raising=False)

    async def everything() -> None:
        server = Server()
        results = await asyncio.gather(*(server.read(Post(LARGE)) for _ in range(4)), return_exceptions=True)
        assert results[:3] == [None] * 3  # one is parsed, two wait
        assert isinstance(results[3], RequestError)
        assert (results[3].status, results[3].code) == (429, "queue_full")
        await server.read(Post(LARGE))

    asyncio.run(everything())


class Notes(dict[str, str]):
    """Metadata of a body, with weak references by which a test sees that it was freed."""


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (chat, ChatRequest(messages=[{"role": "user", "content": "x"}])),  # type: ignore[list-item]
        (completions, CompletionRequest(prompt="x")),
    ],
    ids=["chat", "completions"],
)
def test_a_request_that_waits_for_its_answer_keeps_no_body(
    monkeypatch: pytest.MonkeyPatch, route: Any, body: ChatRequest | CompletionRequest
) -> None:
    """A thousand requests may wait, with bodies of two megabytes each."""

    class Held(ServerContext):
        def __init__(self) -> None:
            self.engine_client = SimpleNamespace(request_metrics=RequestMetrics())  # type: ignore[assignment]
            self.preprocessor = Ids()  # type: ignore[assignment]
            self.config = ServerConfig()

        async def body(self, request: Any, kind: Any) -> Any:
            mine = body.model_copy()
            mine.metadata = Notes()
            self.notes = weakref.ref(mine.metadata)
            return mine

        def model_name(self, name: str | None) -> str:
            return "m"

        def require(self) -> Any:
            return INFO, SimpleNamespace(byte_decoder=None)

    class Ids:
        async def encode_chat(self, *args: Any, **fields: Any) -> list[int]:
            return [1]

        async def encode_each(self, *args: Any, **fields: Any) -> list[list[int]]:
            return [[1]]

        async def find_special_text(self, *args: Any) -> None:
            pass

    class Waiting(Exception):
        pass

    class Job(contextlib.nullcontext[None]):
        id, choices, streamed = "x", (), False

        async def updates(self) -> AsyncIterator[None]:
            raise Waiting(service.notes())
            yield

    async def submit(self: Any) -> Any:
        return Job()

    service = Held()
    monkeypatch.setattr(Generation, "submit", submit)
    request = Request({"type": "http", "headers": [], "app": SimpleNamespace(state=SimpleNamespace(context=service))})
    (answer,) = {endpoint for (_, path), endpoint in fast_routes([route.router]).items() if path.startswith("/v1/")}
    with pytest.raises(Waiting) as found:
        asyncio.run(answer(request))
    assert found.value.args == (None,)

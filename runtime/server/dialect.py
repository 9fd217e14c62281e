"""What all routes that generate share: a request is set going, and its answer told whole or as events, until its client
has gone. How a body becomes the request, and the answer bytes, is a `Dialect`'s, one in each file of ``routes``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.server.jobs import Job, Update
from runtime.server.responses import EventStream, json_response
from runtime.server.service import Service, answered


class Dialect(ABC):
    """How one request's answer is told.

    Attributes:
        job: the engine requests that it takes, under way.
        streams: whether it is told as events.
    """

    def __init__(self, job: Job, *, streams: bool) -> None:
        self.job = job
        self.streams = streams

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer in one piece, once the job has ended."""

    def take(self, update: Update) -> None:  # noqa: B027
        """An engine output of an answer in one piece, where that is made of more than how the job ended."""

    async def settle(self) -> None:  # noqa: B027
        """What is made of an answer that has ended, and may be long, before it is told: in steps, between which others
        have their turn."""

    def begin(self) -> bytes:
        """The events before anything was generated."""
        return b""

    @abstractmethod
    def step(self, update: Update) -> bytes:
        """The events that an engine output brings; b"" where it brings none."""

    @abstractmethod
    def end(self) -> bytes:
        """The events once the job has ended."""

    @abstractmethod
    def failed(self, error: RequestError) -> bytes:
        """The events in place of the rest."""

    async def events(self) -> AsyncIterator[bytes]:
        try:
            if data := self.begin():
                yield data
            async for batch in self.job.updates():
                if data := b"".join(map(self.step, batch)):
                    yield data
            await self.settle()
            yield self.end()
        except RequestError as error:
            yield self.failed(error)


async def answer(request: Request, start: Callable[[Service, Request], Awaitable[Dialect]]) -> Response:
    """The response to a request that `start` reads, checks and sets going; its body, which may be large, ends there."""
    service: Service = request.app.state.service
    with service.admission():
        dialect = await start(service, request)
    if dialect.streams:
        return EventStream(dialect.job, dialect.events())
    with dialect.job:
        await answered(request, dialect.job, dialect.take)
        await dialect.settle()
    return json_response(dialect.whole())

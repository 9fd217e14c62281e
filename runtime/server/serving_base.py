"""What all routes that generate share: a request is set going, and its answer told whole or as events, until its client
has gone. How a body becomes the request, and the answer bytes, is a `Dialect`'s, one in each file of ``routes``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.request.output import CompletionState
from runtime.server.context import ServerContext, run_to_completion
from runtime.server.engine_client.generation_job import GenerationJob, OutputDelta
from runtime.server.http_responses import EventStream, json_response
from runtime.tokenizer import Tokenizer


class ServingHandler(ABC):
    """How one request's answer is told.

    Attributes:
        job: the engine requests that it takes, under way.
        streams: whether it is told as events.
    """

    def __init__(self, job: GenerationJob, *, streams: bool) -> None:
        self.job = job
        self.streams = streams

    @abstractmethod
    def full_response(self) -> dict[str, Any]:
        """The answer in one piece, once the job has ended."""

    def accumulate(self, update: OutputDelta) -> None:  # noqa: B027
        """An engine output of an answer in one piece, where that is made of more than how the job ended."""

    async def finalize(self) -> None:  # noqa: B027
        """What is made of an answer that has ended, and may be long, before it is told: in steps, between which others
        have their turn."""

    def on_start(self) -> bytes:
        """The events before anything was generated."""
        return b""

    @abstractmethod
    def on_output(self, update: OutputDelta) -> bytes:
        """The events that an engine output brings; b"" where it brings none."""

    @abstractmethod
    def on_finish(self) -> bytes:
        """The events once the job has ended."""

    @abstractmethod
    def on_error(self, error: RequestError) -> bytes:
        """The events in place of the rest."""

    async def events(self) -> AsyncIterator[bytes]:
        try:
            if data := self.on_start():
                yield data
            async for batch in self.job.updates():
                if data := b"".join(map(self.on_output, batch)):
                    yield data
            await self.finalize()
            yield self.on_finish()
        except RequestError as error:
            yield self.on_error(error)


async def handle_generation(
    request: Request, start: Callable[[ServerContext, Request], Awaitable[ServingHandler]]
) -> Response:
    """The response to a request that `start` reads, checks and sets going; its body, which may be large, ends there."""
    context: ServerContext = request.app.state.context
    with context.admission():
        handler = await start(context, request)
    if handler.streams:
        return EventStream(handler.job, handler.events())
    with handler.job:
        await run_to_completion(request, handler.job, handler.accumulate)
        await handler.finalize()
    return json_response(handler.full_response())


WARNING = (
    "the model ended at once: it was tuned on conversations, and this prompt is not in its chat template; send it as "
    "messages, to /v1/chat/completions or /generate"
)


def template_warning(choices: Iterable[CompletionState], info: EngineInfo, tokenizer: Tokenizer) -> dict[str, str]:
    """`warning`, where one of `choices` has ended without a word and the template had no part in its prompt: that
    writes special tokens, and text never does."""
    if not tokenizer.has_template:
        return {}
    begins = len(info.with_bos([]))
    for choice in choices:
        silent = choice.eos and not (choice.text or "").strip()
        if silent and tokenizer.special.isdisjoint(choice.spec.prompt[begins:]):
            return {"warning": WARNING}
    return {}

"""Common part of all generation routes: starts a request and returns its response, in one piece or as a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.request.output import CompletionState
from runtime.server.context import ServerContext, run_to_completion
from runtime.server.engine_client.generation_job import GenerationJob, OutputDelta
from runtime.server.http_responses import EventStream, json_response
from runtime.tokenizer import Tokenizer


class ServingHandler(ABC):
    """Converts the outputs of one request into the response of an API.

    Attributes:
        job: the running engine requests.
        streams: whether the response is a stream.
    """

    def __init__(self, job: GenerationJob, *, streams: bool) -> None:
        self.job = job
        self.streams = streams

    @abstractmethod
    def full_response(self) -> Mapping[str, object]:
        """Returns the response in one piece, after the end of the job."""

    def accumulate(self, update: OutputDelta) -> None:  # noqa: B027
        """Processes an output, for responses in one piece that depend on more than the final state."""

    async def finalize(self) -> None:  # noqa: B027
        """Prepares a long response after its end, in steps between which other requests are served."""

    def on_start(self) -> bytes:
        """Returns the first events, before any output."""
        return b""

    @abstractmethod
    def on_output(self, update: OutputDelta) -> bytes:
        """Returns the events of an output; b"" if none."""

    @abstractmethod
    def on_finish(self) -> bytes:
        """Returns the last events, after the end of the job."""

    @abstractmethod
    def on_error(self, error: RequestError) -> bytes:
        """Returns the events that replace the rest of the stream."""

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
    """Returns the response to a request that `start` parses, validates and submits. The body is freed then."""
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


class PromptWarning(TypedDict, total=False):
    """Optional field of a response."""

    warning: str


def template_warning(choices: Iterable[CompletionState], info: EngineInfo, tokenizer: Tokenizer) -> PromptWarning:
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

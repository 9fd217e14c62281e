"""Responses of routes: JSON, event streams, and handlers that make them of the outputs of a request."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.request.output import CompletionState
from runtime.server.serving.generation import PromptWarned, Warned
from runtime.server.serving.job import GenerationJob, OutputDelta
from runtime.server.serving.request_body import ClientGone, until_disconnect
from runtime.tokenizer import Tokenizer

KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def json_response(content: Any, status: int = 200) -> Response:
    return Response(_encode(content), status, media_type="application/json")


def events(*contents: Any) -> bytes:
    """Returns one event per object."""
    return b"".join(b"data: " + _encode(content) + b"\n\n" for content in contents)


def named_event(kind: str, **fields: Any) -> bytes:
    """Returns an event with its name in the line ``event`` and in the field ``type``."""
    return f"event: {kind}\n".encode() + events({"type": kind, **fields})


class EventStream(Response):
    """Sends what `chunks` yields, and comments in longer pauses. It exits `job` in all cases.

    The job belongs to the response and not to the generator, as a generator that never started runs no ``finally``.
    """

    media_type = "text/event-stream"

    def __init__(self, job: AbstractContextManager[Any], chunks: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.job, self.chunks = job, chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["job"] = self.job  # for the access log
        with self.job:
            try:
                async with until_disconnect(receive):
                    await self._send_all(send)
            except ClientGone:
                scope["state"]["client_gone"] = True

    async def _send_all(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()

        async def put(data: bytes, more: bool = True) -> None:
            nonlocal last
            await send({"type": "http.response.body", "body": data, "more_body": more})
            last = loop.time()

        async def fill_pauses() -> None:
            while True:
                quiet = loop.time() - last
                if quiet >= KEEP_ALIVE_SECONDS:
                    await put(b": keep-alive\n\n")
                    quiet = 0.0
                await asyncio.sleep(KEEP_ALIVE_SECONDS - quiet)

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        comments = loop.create_task(fill_pauses())
        try:
            async for data in self.chunks:
                await put(data)
            comments.cancel()
            await put(b"", more=False)
        finally:
            comments.cancel()
            await self.chunks.aclose()  # type: ignore[attr-defined]


class ResponseHandler(ABC):
    """Converts the outputs of one request into the response of an API, in one piece.

    Attributes:
        job: the running engine requests.
    """

    def __init__(self, job: GenerationJob) -> None:
        self.job = job

    @abstractmethod
    def full_response(self) -> Mapping[str, object]:
        """Returns the response in one piece, after the end of the job."""

    def accumulate(self, update: OutputDelta) -> None:  # noqa: B027
        """Processes an output, for responses in one piece that depend on more than the final state."""

    async def finalize(self) -> None:  # noqa: B027
        """Prepares a long response after its end, in steps between which other requests are served."""

    async def respond(self, request: Request) -> Response:
        """Returns the response. Raises RequestError (499: disconnected)."""
        request.state.job = self.job  # for the access log
        with self.job:
            async with until_disconnect(request.receive):
                async for batch in self.job.updates():
                    for update in batch:
                        self.accumulate(update)
            await self.finalize()
        return json_response(self.full_response())


class ServingHandler(ResponseHandler):
    """Also converts them into a stream of events.

    Attributes:
        event_types: types of the data of the events in a stream.
        last_event: follows the last event of the handler.
    """

    event_types: ClassVar[Sequence[type]]
    last_event: ClassVar[bytes] = DONE

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
            data = b""
            async for batch in self.job.updates():
                data = b"".join(map(self.on_output, batch))
                if data and not self.job.ended:  # the last events are sent together
                    yield data
                    data = b""
            await self.finalize()
            yield data + self.on_finish() + self.last_event
        except RequestError as error:
            yield self.on_error(error) + self.last_event

    async def respond(self, request: Request) -> Response:
        """Returns the stream, or the response in one piece. Raises RequestError (499: disconnected) for the latter."""
        return EventStream(self.job, self.events()) if self.job.streamed else await super().respond(request)


NO_TEMPLATE = (
    "the model ended at once: it was tuned on conversations, and this prompt is not in its chat template; send it as "
    "messages, to /v1/chat/completions or /generate"
)
SPECIAL_TEXT = (
    "the prompt contains {!r}, which is a special token of the model but is read as ordinary text; send messages, to "
    "/v1/chat/completions or /generate, or set parse_special to true"
)


def format_warning(choices: Iterable[CompletionState]) -> Warned:
    """Returns the first `warning` of the completions, if one has any."""
    warning = next(filter(None, (choice.warning for choice in choices)), "")
    return {"warning": warning} if warning else {}


def prompt_warning(
    info: EngineInfo, tokenizer: Tokenizer, special_text: str | None, choices: Sequence[CompletionState]
) -> PromptWarned:
    """Returns `warning` if a prompt is probably not what the client meant, or see `format_warning`.

    That is, if its text contains that of a special token, or if a completion is empty and its prompt was made without
    the chat template. A template writes special tokens; text is not encoded as one by default.
    """
    if special_text is not None:
        return {"warning": SPECIAL_TEXT.format(special_text)}
    if not tokenizer.has_template:
        return format_warning(choices)
    begins = len(info.with_bos([]))
    for choice in choices:
        silent = choice.eos and not (choice.text or "").strip()
        if silent and tokenizer.special.isdisjoint(choice.spec.prompt[begins:]):
            return {"warning": NO_TEMPLATE}
    return format_warning(choices)

"""What OpenAI's chat and completions tell alike: an object of choices, chunks of it, and the usage."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from runtime.errors import RequestError
from runtime.parsers import Arguments, CallStart, ChatOutputParser, Delta, Reasoning
from runtime.request.output import CompletionState
from runtime.server.engine_client.generation_job import GenerationJob
from runtime.server.http_responses import DONE, event, openai_error
from runtime.server.openai.protocol import OpenAIRequest
from runtime.server.serving_base import ServingHandler


class StreamSettings(NamedTuple):
    """What a request says of how its answer is told."""

    model: str
    streams: bool
    include_usage: bool  # a stream ends with it
    continuous_usage: bool  # and every chunk of it tells how far it is: with that at its end alone, as others have it
    denoise: bool  # a stream tells every step

    @classmethod
    def of(cls, body: OpenAIRequest, model: str, mode: str | None) -> StreamSettings:
        options = body.stream_options
        usage = options is not None and bool(options.include_usage)
        counts = usage and options is not None and bool(options.continuous_usage_stats)
        return cls(model, mode is not None, usage, counts, mode == "denoise")


class OpenAIHandler(ServingHandler):
    """Chunks of choices, and the usage where it is wanted."""

    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, job: GenerationJob, settings: StreamSettings) -> None:
        super().__init__(job, streams=settings.streams)
        self.settings = settings
        self._head = {"id": job.id, "created": int(time.time()), "model": settings.model}
        self._base: dict[str, Any] = {**self._head, "object": self.chunk_object}
        if settings.include_usage:
            self._base["usage"] = None  # all chunks but the last, as OpenAI has it

    @abstractmethod
    def choices(self) -> list[dict[str, Any]]:
        """Of the answer in one piece."""

    def full_response(self) -> dict[str, Any]:
        return {**self._head, "object": self.object, "choices": self.choices(), "usage": self.job.usage()}

    def chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        if self.settings.continuous_usage:
            more["usage"] = self.job.usage()
        return event({**self._base, "choices": [choice], **more})

    def on_finish(self) -> bytes:
        if not self.settings.include_usage:
            return DONE
        return event({**self._base, "choices": [], "usage": self.job.usage()}) + DONE

    def on_error(self, error: RequestError) -> bytes:
        return event(openai_error(error)) + DONE


def output_parser(choice: CompletionState) -> ChatOutputParser:
    """Of a chat's answer."""
    assert isinstance(choice.parts, ChatOutputParser)
    return choice.parts


def assistant_message(parts: ChatOutputParser) -> dict[str, Any]:
    """Of a whole answer; without a text beside calls, its content is null."""
    made: dict[str, Any] = {
        "role": "assistant",
        "content": parts.content if parts.content or not parts.calls else None,
        "refusal": None,
    }
    if parts.reasoning:
        made["reasoning_content"] = parts.reasoning
    if parts.calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parts.calls
        ]
    return made


def chat_delta(grown: Delta) -> dict[str, Any]:
    """Of a chunk."""
    if isinstance(grown, Reasoning):
        return {"reasoning_content": grown.text}
    if isinstance(grown, CallStart):
        function = {"name": grown.name, "arguments": ""}
        return {"tool_calls": [{"index": grown.index, "id": grown.id, "type": "function", "function": function}]}
    if isinstance(grown, Arguments):
        return {"tool_calls": [{"index": grown.index, "function": {"arguments": grown.text}}]}
    return {"content": grown.text}

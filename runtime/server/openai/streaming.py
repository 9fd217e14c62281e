"""Streaming of chat completions and completions: chunks, usage, and deltas of messages."""

from __future__ import annotations

import time
from typing import Any, ClassVar, NamedTuple

from runtime.errors import RequestError
from runtime.parsers import Arguments, CallStart, ChatOutputParser, Delta, Reasoning
from runtime.request.output import CompletionState
from runtime.server.engine_client.generation_job import GenerationJob
from runtime.server.http_responses import DONE, event, openai_error
from runtime.server.openai.protocol import (
    AnswerMessage,
    ChatChunkChoice,
    ChatDelta,
    CompletionChunkChoice,
    FunctionDelta,
    OpenAIRequest,
    ResponseHead,
)
from runtime.server.serving_base import ServingHandler


class StreamSettings(NamedTuple):
    """Stream options of a request."""

    model: str
    streams: bool
    include_usage: bool  # in the last chunk
    continuous_usage: bool  # also in each chunk
    denoise: bool  # a chunk per step

    @classmethod
    def of(cls, body: OpenAIRequest, model: str, mode: str | None) -> StreamSettings:
        options = body.stream_options
        usage = options is not None and bool(options.include_usage)
        counts = usage and options is not None and bool(options.continuous_usage_stats)
        return cls(model, mode is not None, usage, counts, mode == "denoise")


class OpenAIHandler(ServingHandler):
    """Chunks with choices, and the usage if requested."""

    chunk_object: ClassVar[str]

    def __init__(self, job: GenerationJob, settings: StreamSettings) -> None:
        super().__init__(job, streams=settings.streams)
        self.settings = settings
        self._head: ResponseHead = {"id": job.id, "created": int(time.time()), "model": settings.model}
        self._base: dict[str, Any] = {**self._head, "object": self.chunk_object}
        if settings.include_usage:
            self._base["usage"] = None  # all chunks but the last, as OpenAI has it

    def chunk(self, choice: ChatChunkChoice | CompletionChunkChoice, **more: Any) -> bytes:
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
    """Returns the parser of a chat completion."""
    assert isinstance(choice.parts, ChatOutputParser)
    return choice.parts


def assistant_message(parts: ChatOutputParser) -> AnswerMessage:
    """Returns the full message. Its content is null with tool calls and no text."""
    made: AnswerMessage = {
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


def chat_delta(grown: Delta) -> ChatDelta:
    """Returns the delta of a chunk."""
    if isinstance(grown, Reasoning):
        return {"reasoning_content": grown.text}
    if isinstance(grown, CallStart):
        function: FunctionDelta = {"name": grown.name, "arguments": ""}
        return {"tool_calls": [{"index": grown.index, "id": grown.id, "type": "function", "function": function}]}
    if isinstance(grown, Arguments):
        return {"tool_calls": [{"index": grown.index, "function": {"arguments": grown.text}}]}
    return {"content": grown.text}

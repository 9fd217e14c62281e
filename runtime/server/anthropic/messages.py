"""``POST /v1/messages`` and ``/v1/messages/count_tokens``, compatible with Anthropic clients."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request

from runtime.errors import RequestError
from runtime.parsers.formats import Arguments, CallStart, Delta, Reasoning
from runtime.server.anthropic import protocol
from runtime.server.serving.context import ServerContext
from runtime.server.serving.handler import ServingHandler, format_warning, named_event
from runtime.server.serving.job import GenerationJob, OutputDelta
from runtime.server.serving.routes import RawBodyRoute, json_route
from runtime.server.serving.specs import Generation
from runtime.server.serving.tools import ChatContext

router = APIRouter(route_class=RawBodyRoute, tags=["Anthropic"])


@json_route(router, "/v1/messages/count_tokens", "Count tokens", error=protocol.MessagesError)
async def count_tokens(context: ServerContext, request: Request, body: protocol.CountRequest) -> protocol.TokenCount:
    """Counts the prompt tokens of a conversation, including the chat template."""
    context.model_name(body.model)
    chat = ChatContext(context.config, *context.require(), body.tool_config())
    ids = await chat.prompt(request, context.preprocessor, body.to_chat())
    return {"input_tokens": len(ids)}


_STOP_REASONS: dict[str, protocol.StopReason] = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_NO_END = {"stop_reason": None, "stop_sequence": None}


class MessagesHandler(ServingHandler):
    """Response of ``/v1/messages``, and the events of its blocks."""

    event_types = protocol.MESSAGE_EVENTS
    last_event = b""

    def __init__(self, job: GenerationJob, model: str) -> None:
        super().__init__(job)
        self._model = model
        self._blocks: list[Any] = []  # finished ones (AnswerBlock)
        self._open: dict[str, Any] = {}  # the current block; empty if none
        self._pieces: list[str] = []
        self._begun = False

    def full_response(self) -> protocol.MessagesAnswer:
        self._end()
        return {**self._message(self._blocks, self._stop_fields(), self._usage()), **format_warning(self.job.choices)}

    def accumulate(self, update: OutputDelta) -> None:
        self.on_output(update)

    def on_output(self, update: OutputDelta) -> bytes:
        return self._start() + b"".join(map(self._append, update.deltas))

    def on_finish(self) -> bytes:
        data = self._start() + self._end()
        delta = named_event(
            "message_delta", delta=self._stop_fields(), usage=self._usage(), **format_warning(self.job.choices)
        )
        return data + delta + named_event("message_stop")

    def on_error(self, error: RequestError) -> bytes:
        return named_event("error", error=protocol.error_object(error)["error"])

    def _start(self) -> bytes:
        """Returns the first event once the number of cached prompt tokens is known."""
        if self._begun:
            return b""
        self._begun = True
        usage: protocol.MessagesUsage = {**self._usage(), "output_tokens": 0}
        return named_event("message_start", message=self._message([], _NO_END, usage))

    def _append(self, delta: Delta) -> bytes:
        """Extends the current block, or starts another one."""
        if isinstance(delta, CallStart):
            return self._begin({"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
        if isinstance(delta, Arguments):
            self._pieces.append(delta.text)
            return self._block("content_block_delta", delta={"type": "input_json_delta", "partial_json": delta.text})
        thinks = isinstance(delta, Reasoning)
        kind = "thinking" if thinks else "text"
        data = b""
        if self._open.get("type") != kind:
            data = self._begin({"type": kind, kind: "", **({"signature": ""} if thinks else {})})
        self._pieces.append(delta.text)
        return data + self._block("content_block_delta", delta={"type": f"{kind}_delta", kind: delta.text})

    def _begin(self, block: dict[str, Any]) -> bytes:
        data = self._end()
        self._open = block
        return data + self._block("content_block_start", content_block=block)

    def _end(self) -> bytes:
        if not self._open:
            return b""
        text, kind = "".join(self._pieces), self._open["type"]
        # the JSON of a call is returned as generated: parsing may change numbers or fail for invalid Unicode
        ended = {"input": msgspec.Raw((text or "{}").encode())} if kind == "tool_use" else {kind: text}
        data = self._block("content_block_stop")
        self._blocks.append({**self._open, **ended})
        self._open = {}
        self._pieces = []
        return data

    def _stop_fields(self) -> protocol.MessageEnd:
        choice = self.job.choices[0]
        if choice.stopped_by is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": choice.stopped_by}
        return {"stop_reason": _STOP_REASONS[choice.openai_reason], "stop_sequence": None}

    def _usage(self) -> protocol.MessagesUsage:
        """Returns token counts. Cached prompt tokens are counted separately."""
        usage = self.job.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "output_tokens": usage["completion_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }

    def _message(self, content: list[Any], end: Any, usage: protocol.MessagesUsage) -> protocol.MessagesAnswer:
        """Returns the message. `end`: a `MessageEnd`, with nulls before the end."""
        return {
            "id": self.job.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": end["stop_reason"],
            "stop_sequence": end["stop_sequence"],
            "usage": usage,
        }

    def _block(self, kind: str, **fields: Any) -> bytes:
        return named_event(kind, index=len(self._blocks), **fields)


@json_route(router, "/v1/messages", "Create a message", error=protocol.MessagesError)
async def messages(context: ServerContext, request: Request, body: protocol.MessagesRequest) -> MessagesHandler:
    """Creates a message in response to a conversation."""
    generation = Generation(context, request, body, "msg_")
    body.check_conflicts()
    await generation.encode_chat(body.tool_config(), body.to_chat())
    return MessagesHandler(await generation.submit(), generation.model)

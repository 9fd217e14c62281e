"""``POST /v1/fim/completions``, compatible with Mistral clients (docs/guide/editors.md)."""

from __future__ import annotations

import time
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request

from runtime.errors import RequestError
from runtime.request.output import CompletionState
from runtime.server.http_protocol.error_responses import ErrorResponse, error_object
from runtime.server.mistral import protocol
from runtime.server.serving.context import ServerContext
from runtime.server.serving.fill_in_middle import Middle, encode_middle
from runtime.server.serving.handler import ServingHandler, events
from runtime.server.serving.job import GenerationJob, OutputDelta
from runtime.server.serving.routes import RawBodyRoute, json_route
from runtime.server.serving.specs import Generation

router = APIRouter(route_class=RawBodyRoute, tags=["Editors"])


class FimHandler(ServingHandler):
    """Mistral's chat.completion objects. The last chunk has the usage, as Mistral has it."""

    event_types = (protocol.FimChunk, ErrorResponse)

    def __init__(self, job: GenerationJob, model: str) -> None:
        super().__init__(job)
        self._head: protocol.FimHead = {"id": job.id, "created": int(time.time()), "model": model}

    def full_response(self) -> protocol.FimAnswer:
        choice = self.job.choices[0]
        message: protocol.FimMessage = {"role": "assistant", "content": choice.text or "", "tool_calls": None}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": _reason(choice)}],
            "usage": self.job.usage(),
        }

    def on_start(self) -> bytes:
        return events(self._chunk({"role": "assistant", "content": ""}))

    def on_output(self, update: OutputDelta) -> bytes:
        return events(self._chunk({"content": update.text})) if update.text else b""

    def on_finish(self) -> bytes:
        chunk = self._chunk({"content": ""}, _reason(self.job.choices[0]))
        return events({**chunk, "usage": self.job.usage()})

    def on_error(self, error: RequestError) -> bytes:
        return events(error_object(error))

    def _chunk(self, delta: protocol.FimDelta, reason: protocol.Reason | None = None) -> dict[str, Any]:
        choice: protocol.FimChunkChoice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}


def _reason(choice: CompletionState) -> protocol.Reason:
    return cast(protocol.Reason, choice.openai_reason)  # there are no tools


@json_route(router, "/v1/fim/completions", "Complete at a cursor, as Mistral", short="/fim/completions")
async def fim_completions(context: ServerContext, request: Request, body: protocol.FimRequest) -> FimHandler:
    """Completes a text between a prompt and a suffix."""
    generation = Generation(context, request, body, "fim-")
    await encode_middle(context, generation, body, Middle(body.prompt, body.suffix or "", max_tokens=body.max_tokens))
    return FimHandler(await generation.submit(), generation.model)

"""``POST /infill``, compatible with editors for llama.cpp's server (docs/guide/editors.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request

from runtime.errors import RequestError
from runtime.request.output import CompletionState
from runtime.server.http_protocol.error_responses import ErrorResponse, error_object
from runtime.server.llama_cpp import protocol
from runtime.server.serving.context import ServerContext
from runtime.server.serving.fill_in_middle import Middle, encode_middle
from runtime.server.serving.handler import ServingHandler, events
from runtime.server.serving.job import GenerationJob, OutputDelta
from runtime.server.serving.routes import RawBodyRoute, json_route
from runtime.server.serving.specs import Generation

router = APIRouter(route_class=RawBodyRoute, tags=["Editors"])


class LlamaInfillHandler(ServingHandler):
    """Answer of llama.cpp's ``/infill``. Its streams have no ``[DONE]``: the last event has `stop` true."""

    event_types = (protocol.LlamaEvent, protocol.LlamaInfillAnswer, ErrorResponse)
    last_event = b""

    def __init__(self, job: GenerationJob, model: str, body: protocol.LlamaInfillRequest, truncated: bool) -> None:
        super().__init__(job)
        self._truncated = truncated
        self._model, self._choice = model, job.choices[0]
        self._return_tokens = bool(body.return_tokens)
        self._response_fields = body.response_fields or []

    def full_response(self) -> protocol.LlamaInfillAnswer:
        return self._answer(self._choice.text or "")

    def on_output(self, update: OutputDelta) -> bytes:
        if not update.text:
            return b""
        event: protocol.LlamaEvent = {
            "index": 0,
            "content": update.text,
            "tokens": [],
            "stop": False,
            "tokens_predicted": self._choice.completion_tokens,
            "tokens_evaluated": self.job.prompt_tokens,
        }
        return events(event)

    def on_finish(self) -> bytes:
        return events(self._answer(""))

    def on_error(self, error: RequestError) -> bytes:
        return events(error_object(error))

    def _answer(self, content: str) -> protocol.LlamaInfillAnswer:
        choice = self._choice
        answer: protocol.LlamaInfillAnswer = {
            "index": 0,
            "id": self.job.id,
            "content": content,
            "tokens": choice.token_ids if self._return_tokens else [],
            "stop": True,
            "model": self._model,
            "tokens_predicted": choice.completion_tokens,
            "tokens_evaluated": self.job.prompt_tokens,
            "has_new_line": "\n" in (choice.text or ""),
            "truncated": self._truncated,
            "stop_type": "word" if choice.stopped_by else "eos" if choice.finish_reason == "stop" else "limit",
            "stopping_word": choice.stopped_by or "",
            "tokens_cached": choice.cached_tokens,
            "timings": _timings(choice, self.job.prompt_tokens, self.job.timings()["total_seconds"]),
        }
        if self._response_fields:
            return cast(protocol.LlamaInfillAnswer, dict(_selected(answer, self._response_fields)))
        return answer


def _timings(choice: CompletionState, prompt_tokens: int, seconds: float) -> protocol.LlamaTimings:
    """Returns the times of a completion. `seconds`: in total, with those in the queue and of the prompt."""
    computed, predicted = prompt_tokens - choice.cached_tokens, choice.completion_tokens
    prompt_ms = 1000 * choice.prefill_seconds
    predicted_ms = max(1000 * (seconds - choice.queue_seconds) - prompt_ms, 0.0)
    return {
        "cache_n": choice.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, computed),
        "prompt_per_second": _ratio(1000 * computed, prompt_ms),
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, predicted),
        "predicted_per_second": _ratio(1000 * predicted, predicted_ms),
    }


def _ratio(value: float, by: float) -> float:
    return value / by if by else 0.0


def _selected(answer: Mapping[str, Any], paths: list[str]) -> Iterator[tuple[str, Any]]:
    """Yields the values at paths such as ``timings/prompt_n``. Paths without a value are left out."""
    for path in paths:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            yield path, value


def _snippets(body: protocol.LlamaInfillRequest) -> list[str]:
    """Returns the texts of other places, each after the name of its file."""
    return [f"{each.filename}\n{each.text}" if each.filename else each.text for each in body.input_extra or ()]


@json_route(router, "/infill", "Complete at a cursor, as llama.cpp")
async def llama_cpp_infill(
    context: ServerContext, request: Request, body: protocol.LlamaInfillRequest
) -> LlamaInfillHandler:
    """Completes a text between `input_prefix` with `prompt` and `input_suffix`."""
    generation = Generation(context, request, body, "infill-")
    limit = body.max_tokens if body.n_predict is None else body.n_predict
    warms = limit == 0  # editors have the prefix cache filled while the user does not type
    middle = Middle(
        before=body.input_prefix + (body.prompt or ""),
        after=body.input_suffix,
        snippets=_snippets(body),
        max_tokens=1 if warms else limit,
        shortens=True,
        param="input_extra" if body.input_extra else "input_prefix",
        length_param="max_tokens" if body.n_predict is None else "n_predict",
    )
    truncated = await encode_middle(context, generation, body, middle)
    if warms:
        generation.text_limit = 0
    return LlamaInfillHandler(await generation.submit(), generation.model, body, truncated)

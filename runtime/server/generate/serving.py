"""``POST /generate`` and ``POST /v1/infill`` (docs/reference/api.md#routes, docs/guide/streaming.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from typing_extensions import TypedDict

from runtime.errors import RequestError
from runtime.request.output import CompletionState, append_event, denoise_event
from runtime.request.validation import refuse
from runtime.server.generate import protocol
from runtime.server.http_protocol.error_responses import error_object
from runtime.server.serving.chat import ChatPrompt, template_messages
from runtime.server.serving.context import ServerContext
from runtime.server.serving.generation import STEP_MAP, check_unset, parse_response_format
from runtime.server.serving.handler import ServingHandler, events, prompt_warning
from runtime.server.serving.job import GenerationJob, OutputDelta
from runtime.server.serving.logprobs import LogprobStreamer, TokenEntry, token_text
from runtime.server.serving.preprocessor import context_length_error
from runtime.server.serving.routes import RawBodyRoute, json_route
from runtime.server.serving.specs import Generation
from runtime.server.serving.tools import NO_GRAMMAR_MESSAGE


class GenerateEvents(ServingHandler):
    """Events of docs/guide/streaming.md."""

    def __init__(self, job: GenerationJob, generation: Generation) -> None:
        super().__init__(job)
        self._tokenizer = generation.loaded[1]
        self._make = denoise_event if generation.stream_mode == "denoise" else append_event

    def event_fields(self, update: OutputDelta) -> dict[str, Any] | None:
        """Returns the fields of the event of a step; None without an event."""
        return self._make(update.choice, update.output, update.text)

    def on_output(self, update: OutputDelta) -> bytes:
        fields = self.event_fields(update)
        return b"" if fields is None else events(fields)

    def on_finish(self) -> bytes:
        return events({"event": "final", **self.full_response()})

    def on_error(self, error: RequestError) -> bytes:
        return events({"event": "error", "id": self.job.id, **error_object(error)})


router = APIRouter(route_class=RawBodyRoute, tags=["Denoising"])
DEFAULT_MAX_TOKENS = 512


class GenerateLogprobStreamer(LogprobStreamer):
    """An entry per token id. The full response repeats the entries of the stream."""

    def entries(self) -> Sequence[TokenEntry]:
        return [(entry, 0) for entry in self._choice.token_logprobs or ()]

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        return {"id": token, "token": token_text(self._pieces(token)), "logprob": logprob}


class _Logprobs(TypedDict, total=False):
    logprobs: Any  # encoded list of OwnLogprob


class _Meta(TypedDict, total=False):
    meta_info: protocol.MetaInfo


class GenerateHandler(GenerateEvents):
    """Response of ``/generate``. `text`: the prompt, if the request had it as text; `meta`: with `meta_info`."""

    event_types = (protocol.DenoiseEvent, protocol.AppendEvent, protocol.GenerateFinal, protocol.ErrorEvent)

    def __init__(self, job: GenerationJob, generation: Generation, text: str | None, *, meta: bool = False) -> None:
        super().__init__(job, generation)
        self._text, self._has_meta = text, meta
        self._warning = partial(prompt_warning, *generation.loaded, generation.special_text)
        self._logprobs = GenerateLogprobStreamer(job.choices[0], self._tokenizer.byte_decoder)
        self._full_logprobs: _Logprobs = {}

    def event_fields(self, update: OutputDelta) -> dict[str, Any] | None:
        """Adds log-probabilities of the tokens of the new text, if requested."""
        fields = super().event_fields(update)
        if update.choice.spec.logprobs is None or fields is None:
            return fields
        return {**fields, "logprobs": self._logprobs.delta(update)}

    async def finalize(self) -> None:
        if self.job.choices[0].spec.logprobs is not None:
            self._full_logprobs = {"logprobs": await self._logprobs.full()}

    def full_response(self) -> protocol.GenerateAnswer:
        choice = self.job.choices[0]
        ids = choice.spec.prompt
        prompt = self._tokenizer.decode(ids) if self._text is None else self._text
        return {
            "id": self.job.id,
            "text": choice.text or "",
            "token_ids": choice.token_ids,
            "nfe": choice.nfe,
            "finish_reason": cast(protocol.FinishReason, choice.finish_reason),
            **self._full_logprobs,
            **choice.step_map_fields(),
            **self._meta(choice),
            "full_text": prompt + (choice.text or ""),
            "full_token_ids": ids + choice.token_ids,
            "usage": self.job.usage(),
            "timings": self.job.timings(),
            **self._warning(self.job.choices),
        }

    def _meta(self, choice: CompletionState) -> _Meta:
        if not self._has_meta:
            return {}
        return {"meta_info": {"step_maps": choice.steps.ordinals[: len(choice.token_ids)]}}


MAX_HOLES = 256
MAX_HOLE = 4096  # tokens
_HOLE = re.compile(r"<mask:(\d{1,9})>")
# Rejected by /v1/infill: the holes determine the length of the output.
_LENGTH_FIELDS = ("max_tokens", "stop", "stop_token_ids", "ignore_eos", "max_nfe", "max_repetition_run")


async def _tokenize_segments(
    context: ServerContext, generation: Generation, body: protocol.InfillRequest
) -> tuple[list[str | int], list[tuple[int, int]]]:
    """Sets prompts, `max_tokens` and pinned tokens of a request from the tokens around the gaps. Raises RequestError.

    Returns texts and lengths of gaps in order; and, by offset in the completion, the first token of each gap and the
    first one after it.
    """
    segments, param = _segments(body)
    request, info = generation.request, generation.loaded[0]
    if body.messages is not None:
        chat = ChatPrompt(template_messages(body.messages), body.chat_template_kwargs or {})
        ids = await context.preprocessor.encode_chat(request, chat)
    else:
        check_unset(body, ["chat_template_kwargs"], "only with messages; leave it out")
        ids = info.with_bos([])
    texts = [segment for segment in segments if isinstance(segment, str)]
    free_tokens = info.max_model_len - len(ids) - sum(segment for segment in segments if isinstance(segment, int))
    if free_tokens < 0:
        raise context_length_error(param, info, "more than")
    pieces = iter(await context.preprocessor.encode_pieces(request, texts, param, free_tokens))
    holes: list[tuple[int, int]] = []
    after: list[int | None] = []  # tokens from the first gap on, None in gaps
    for segment in segments:
        if isinstance(segment, int):
            holes.append((len(after), len(after) + segment))
            after += [None] * segment
        elif holes:
            after += next(pieces)
        else:
            ids += next(pieces)
    if not ids:
        raise refuse(param, "begins with a hole; give a text before it, or messages")
    generation.prompts, generation.max_tokens = [ids], len(after)
    generation.pinned_tokens = {i: token for i, token in enumerate(after) if token is not None}
    return segments, holes


def _segments(body: protocol.InfillRequest) -> tuple[list[str | int], str]:
    """Returns texts and lengths of gaps in order, and the field that has them. Raises RequestError."""
    if (body.text is None) == (body.segments is None):
        raise refuse("text", "give either text or segments")
    if body.segments is not None:
        param, every = "segments", [segment.text if segment.mask is None else segment.mask for segment in body.segments]
    else:
        # megabytes of holes are not split: one more than allowed is enough for the error
        param, parts = "text", _HOLE.split(body.text or "", maxsplit=MAX_HOLES + 1)
        every = [int(part) if i % 2 else part for i, part in enumerate(parts)]
    found = [part for part in every if part is not None and part != ""]
    sizes = [part for part in found if isinstance(part, int)]
    if not sizes:
        raise refuse(param, "has no hole; write one of eight tokens as <mask:8>")
    if len(sizes) > MAX_HOLES:
        raise refuse(param, f"has more than {MAX_HOLES} holes; write fewer")
    for size in sizes:
        if not 1 <= size <= MAX_HOLE:
            raise refuse(param, f"a hole of {size} tokens; from 1 to {MAX_HOLE}")
    return found, param


class InfillHandler(GenerateEvents):
    """Response of ``/v1/infill``: the full text and the text of each gap."""

    event_types = (protocol.DenoiseEvent, protocol.InfillFinal, protocol.ErrorEvent)

    def __init__(
        self, job: GenerationJob, generation: Generation, segments: list[str | int], holes: list[tuple[int, int]]
    ) -> None:
        super().__init__(job, generation)
        self._model, self._segments, self._holes = generation.model, segments, holes

    def full_response(self) -> protocol.InfillAnswer:
        choice = self.job.choices[0]
        each = [choice.token_ids[first:end] for first, end in self._holes]
        special = self._tokenizer.special  # these have no text
        texts = [self._tokenizer.decode(token for token in ids if token not in special) for ids in each]
        rest = iter(texts)
        return {
            "id": self.job.id,
            "object": "infill",
            "model": self._model,
            "text": "".join(next(rest) if isinstance(segment, int) else segment for segment in self._segments),
            "holes": [{"text": text, "token_ids": ids} for text, ids in zip(texts, each, strict=True)],
            "nfe": choice.nfe,
            "usage": self.job.usage(),
            "timings": self.job.timings(),
        }


@json_route(router, "/generate", "Complete a prompt or a chat")
async def generate(context: ServerContext, request: Request, body: protocol.GenerateRequest) -> GenerateHandler:
    """Completes a prompt (text or token ids) or responds to a chat."""
    generation = Generation(context, request, body, "gen-")
    generation.default_max_tokens = DEFAULT_MAX_TOKENS
    body.check_input(body.prompt)
    if body.prompt is not None:
        await generation.encode_prompts([body.prompt], parse_special=body.parse_special is True)
    else:
        chat = body.to_chat()
        generation.continued = chat.continued
        generation.prompts = [await context.preprocessor.encode_chat(request, chat)]
        requested, name = parse_response_format(body)
        if chat.continued and requested is not None:
            raise refuse(name, NO_GRAMMAR_MESSAGE)
    text = body.prompt if isinstance(body.prompt, str) else None
    has_meta = bool(body.return_step_maps) and body.set_fields()[STEP_MAP]
    return GenerateHandler(await generation.submit(), generation, text, meta=has_meta)


@json_route(router, "/v1/infill", "Fill gaps in a text")
async def infill(context: ServerContext, request: Request, body: protocol.InfillRequest) -> InfillHandler:
    """Fills gaps in a text: ``<mask:8>`` is a gap of eight tokens."""
    generation = Generation(context, request, body, "infill-")
    check_unset(body, _LENGTH_FIELDS, "the holes determine the length of the output; leave it out")
    segments, holes = await _tokenize_segments(context, generation, body)
    return InfillHandler(await generation.submit(), generation, segments, holes)

"""``POST /v1/infill``: a text with holes, each of so many tokens, of which all are filled and the rest stays."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.server.answers.own import DenoiseEvent, ErrorEvent, InfillAnswer, InfillFinal
from runtime.server.conversation import template_messages
from runtime.server.dialect import handle_generation
from runtime.server.jobs import GenerationJob
from runtime.server.own_events import GenerateEvents
from runtime.server.preparing import context_length_error
from runtime.server.routes.documented import RawBodyRoute, json_route
from runtime.server.schemas import InfillRequest
from runtime.server.service import ServerContext, new_id, stream_mode
from runtime.tokenizer import Tokenizer

router = APIRouter(route_class=RawBodyRoute)
MAX_HOLES = 256
MAX_HOLE = 4096  # tokens
_HOLE = re.compile(r"<mask:(\d{1,9})>")
_LENGTH_FIELDS = ("max_tokens", "stop", "ignore_eos", "max_nfe", "max_repetition_run")  # where holes say how long


class InfillLayout(NamedTuple):
    """A text with holes as the engine has it.

    Attributes:
        segments: its texts and, for holes, their lengths.
        prompt: the ids before the first hole, with the conversation's.
        given: the ids behind it that stay, by their offsets from there.
        holes: each one's first and last offset, the last exclusive.
        length: of all that comes after `prompt`, tokens.
    """

    segments: list[str | int]
    prompt: list[int]
    pinned_tokens: dict[int, int]
    holes: list[tuple[int, int]]
    length: int


@router.post("/v1/infill", **json_route(InfillRequest, InfillAnswer, (DenoiseEvent, InfillFinal, ErrorEvent)))
async def infill(request: Request) -> Response:
    """Fill the holes of a text: ``<mask:8>`` is one of eight tokens."""
    return await handle_generation(request, _start)


async def _start(context: ServerContext, request: Request) -> InfillHandler:
    body = await context.body(request, InfillRequest)
    model = context.model_name(body.model)
    for name in _LENGTH_FIELDS:
        if getattr(body, name) is not None:
            raise RequestError(f"{name}: the holes say how long the answer is; leave it out", param=name)
    mode = stream_mode(body, default="denoise")
    _, tokenizer = context.require()
    layout = await _tokenize_segments(context, request, body)
    job = await context.job(
        request,
        body,
        [layout.prompt],
        id=new_id("infill"),
        mode=mode,
        names={"prompt": "text" if body.segments is None else "segments"},
        max_tokens=layout.length,
        pinned_tokens=layout.pinned_tokens,
        model=model,
    )
    return InfillHandler(job, mode, tokenizer, model, layout)


async def _tokenize_segments(context: ServerContext, request: Request, body: InfillRequest) -> InfillLayout:
    segments, param = _segments(body)
    preparer = context.preprocessor
    ids: list[int] = []
    if body.messages is not None:
        ids = await preparer.encode_chat(request, template_messages(body.messages), body.chat_template_kwargs)
    elif body.chat_template_kwargs is not None:
        raise RequestError("chat_template_kwargs: only with messages", param="chat_template_kwargs")
    else:
        ids = context.require()[0].with_bos([])
    limit = context.require()[0].max_model_len
    texts = [segment for segment in segments if isinstance(segment, str)]
    free_tokens = limit - len(ids) - sum(segment for segment in segments if isinstance(segment, int))
    if free_tokens < 0:
        raise context_length_error(param, context.require()[0], "more than")
    pieces = iter(await preparer.encode_pieces(request, texts, param, free_tokens))
    pinned_tokens: dict[int, int] = {}
    holes: list[tuple[int, int]] = []
    at = 0
    for segment in segments:
        if isinstance(segment, int):
            holes.append((at, at + segment))
            at += segment
            continue
        own = next(pieces)
        if not holes:
            ids += own
            continue
        pinned_tokens |= {at + i: token for i, token in enumerate(own)}
        at += len(own)
    if not ids:
        raise RequestError(f"{param}: begins with a hole; give a text before it, or messages", param=param)
    return InfillLayout(segments, ids, pinned_tokens, holes, at)


def _segments(body: InfillRequest) -> tuple[list[str | int], str]:
    """Texts and holes in turn, and which field they stand in. Raises RequestError."""
    if (body.text is None) == (body.segments is None):
        raise RequestError("text: give either text or segments", param="text")
    if body.segments is not None:
        param = "segments"
        found: list[str | int] = []
        for i, segment in enumerate(body.segments):
            match (segment.text, segment.mask):
                case (str(text), None):
                    found.append(text)
                case (None, int(mask)):
                    found.append(mask)
                case _:
                    path = f"segments[{i}]"
                    raise RequestError(f"{path}: give it either text or mask, a hole's tokens", param=path)
    else:
        param = "text"
        parts = _HOLE.split(body.text or "")
        found = [int(part) if i % 2 else part for i, part in enumerate(parts)]
    found = [part for part in found if part != ""]
    sizes = [part for part in found if isinstance(part, int)]
    if not sizes:
        raise RequestError(f"{param}: has no hole; write one of eight tokens as <mask:8>", param=param)
    if len(sizes) > MAX_HOLES:
        raise RequestError(f"{param}: has {len(sizes)} holes; at most {MAX_HOLES}", param=param)
    for size in sizes:
        if not 1 <= size <= MAX_HOLE:
            raise RequestError(f"{param}: a hole of {size} tokens; from 1 to {MAX_HOLE}", param=param)
    return found, param


class InfillHandler(GenerateEvents):
    """The whole text, and what stands in each of its holes."""

    def __init__(
        self, job: GenerationJob, mode: str | None, tokenizer: Tokenizer, model: str, layout: InfillLayout
    ) -> None:
        super().__init__(job, mode)
        self._tokenizer = tokenizer
        self._model = model
        self._layout = layout

    def full_response(self) -> dict[str, Any]:
        choice = self.job.choices[0]
        each = [choice.token_ids[first:end] for first, end in self._layout.holes]
        special = self._tokenizer.special  # these have no text
        texts = [self._tokenizer.decode(token for token in ids if token not in special) for ids in each]
        rest = iter(texts)
        return {
            "id": self.job.id,
            "object": "infill",
            "model": self._model,
            "text": "".join(next(rest) if isinstance(segment, int) else segment for segment in self._layout.segments),
            "holes": [{"text": text, "token_ids": ids} for text, ids in zip(texts, each, strict=True)],
            "nfe": choice.nfe,
            "usage": self.job.usage(),
            "timings": self.job.timings(),
        }

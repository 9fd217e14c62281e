"""``POST /v1/infill``: a text with holes, each of so many tokens, of which all are filled and the rest stays."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.server.answers.own import DenoiseEvent, ErrorEvent, InfillAnswer, InfillFinal
from runtime.server.conversation import plain
from runtime.server.dialect import answer
from runtime.server.jobs import Job
from runtime.server.own_events import OwnEvents
from runtime.server.preparing import too_long
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.schemas import InfillRequest
from runtime.server.service import Service, new_id, stream_mode
from runtime.tokenizer import Tokenizer

router = APIRouter(route_class=OwnBody)
MAX_HOLES = 256
MAX_HOLE = 4096  # tokens
_HOLE = re.compile(r"<mask:(\d{1,9})>")
_SAYS_NOTHING = ("max_tokens", "stop", "ignore_eos", "max_nfe", "max_repetition_run")  # where holes say how long


class Laid(NamedTuple):
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
    given: dict[int, int]
    holes: list[tuple[int, int]]
    length: int


@router.post("/v1/infill", **takes(InfillRequest, InfillAnswer, (DenoiseEvent, InfillFinal, ErrorEvent)))
async def infill(request: Request) -> Response:
    """Fill the holes of a text: ``<mask:8>`` is one of eight tokens."""
    return await answer(request, _start)


async def _start(service: Service, request: Request) -> Filled:
    body = await service.body(request, InfillRequest)
    model = service.model_name(body.model)
    for name in _SAYS_NOTHING:
        if getattr(body, name) is not None:
            raise RequestError(f"{name}: the holes say how long the answer is; leave it out", param=name)
    mode = stream_mode(body, default="denoise")
    _, tokenizer = service.require()
    laid = await _lay_out(service, request, body)
    job = await service.job(
        request,
        body,
        [laid.prompt],
        id=new_id("infill"),
        mode=mode,
        names={"prompt": "text" if body.segments is None else "segments"},
        max_tokens=laid.length,
        given=laid.given,
        model=model,
    )
    return Filled(job, mode, tokenizer, model, laid)


async def _lay_out(service: Service, request: Request, body: InfillRequest) -> Laid:
    segments, param = _segments(body)
    preparer = service.preparer
    ids: list[int] = []
    if body.messages is not None:
        ids = await preparer.encode_chat(request, plain(body.messages), body.chat_template_kwargs)
    elif body.chat_template_kwargs is not None:
        raise RequestError("chat_template_kwargs: only with messages", param="chat_template_kwargs")
    else:
        ids = service.require()[0].with_bos([])
    most = service.require()[0].max_model_len
    texts = [segment for segment in segments if isinstance(segment, str)]
    room = most - len(ids) - sum(segment for segment in segments if isinstance(segment, int))
    if room < 0:
        raise too_long(param, service.require()[0], "more than")
    pieces = iter(await preparer.encode_pieces(request, texts, param, room))
    given: dict[int, int] = {}
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
        given |= {at + i: token for i, token in enumerate(own)}
        at += len(own)
    if not ids:
        raise RequestError(f"{param}: begins with a hole; give a text before it, or messages", param=param)
    return Laid(segments, ids, given, holes, at)


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


class Filled(OwnEvents):
    """The whole text, and what stands in each of its holes."""

    def __init__(self, job: Job, mode: str | None, tokenizer: Tokenizer, model: str, laid: Laid) -> None:
        super().__init__(job, mode)
        self._tokenizer = tokenizer
        self._model = model
        self._laid = laid

    def whole(self) -> dict[str, Any]:
        choice = self.job.choices[0]
        each = [choice.token_ids[first:end] for first, end in self._laid.holes]
        special = self._tokenizer.special  # these have no text
        texts = [self._tokenizer.decode(token for token in ids if token not in special) for ids in each]
        rest = iter(texts)
        return {
            "id": self.job.id,
            "object": "infill",
            "model": self._model,
            "text": "".join(next(rest) if isinstance(segment, int) else segment for segment in self._laid.segments),
            "holes": [{"text": text, "token_ids": ids} for text, ids in zip(texts, each, strict=True)],
            "nfe": choice.nfe,
            "usage": self.job.usage(),
            "timings": self.job.timings(),
        }

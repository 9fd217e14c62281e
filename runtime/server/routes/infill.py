"""``POST /v1/infill``: a text with holes, each of so many tokens, of which all are filled and the rest stays."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.choice import denoise_event
from runtime.server.conversation import plain
from runtime.server.errors import of_error
from runtime.server.jobs import Job
from runtime.server.preparing import too_long
from runtime.server.responses import DONE, EventStream, event, json_response
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.schemas import InfillRequest
from runtime.server.service import Service, answered, new_id, stream_mode
from runtime.text import Tokenizer

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


@router.post("/v1/infill", **takes(InfillRequest, streams=True))
async def infill(request: Request) -> Response:
    """Fill the holes of a text: ``<mask:8>`` is one of eight tokens."""
    service: Service = request.app.state.service
    with service.admission():
        body = await service.body(request, InfillRequest)
        model = service.model_name(body.model)
        for name in _SAYS_NOTHING:
            if getattr(body, name) is not None:
                raise RequestError(f"{name}: the holes say how long the answer is; leave it out", param=name)
        mode = stream_mode(body, default="denoise")
        service.require()
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
    if body.stream:
        return EventStream(job, _events(service, job, model, laid))
    with job:
        await answered(request, job)
    return json_response(_answer(service, job, model, laid))


async def _lay_out(service: Service, request: Request, body: InfillRequest) -> Laid:
    segments, param = _segments(body)
    preparer = service.preparer
    ids: list[int] = []
    if body.messages is not None:
        ids = await preparer.encode_chat(request, plain(body.messages), body.chat_template_kwargs)
    elif body.chat_template_kwargs is not None:
        raise RequestError("chat_template_kwargs: only with messages", param="chat_template_kwargs")
    else:
        ids = service.require()[0].begun([])
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


def _filled(tokenizer: Tokenizer, ids: Sequence[int], laid: Laid) -> list[str]:
    """The text of each hole; special tokens in it have none."""
    return [tokenizer.decode(t for t in ids[first:end] if t not in tokenizer.special) for first, end in laid.holes]


def _answer(service: Service, job: Job, model: str, laid: Laid) -> dict[str, Any]:
    _, tokenizer = service.require()
    choice = job.choices[0]
    texts = _filled(tokenizer, choice.token_ids, laid)
    rest = iter(texts)
    holes = [
        {"text": text, "token_ids": choice.token_ids[first:end]}
        for text, (first, end) in zip(texts, laid.holes, strict=True)
    ]
    return {
        "id": job.id,
        "object": "infill",
        "model": model,
        "text": "".join(next(rest) if isinstance(segment, int) else segment for segment in laid.segments),
        "holes": holes,
        "nfe": choice.nfe,
        "usage": job.usage(),
        "timings": job.timings(),
    }


async def _events(service: Service, job: Job, model: str, laid: Laid) -> AsyncIterator[bytes]:
    try:
        async for batch in job.updates():
            data = b"".join(event(denoise_event(update.choice, update.output, update.text)) for update in batch)
            if data:
                yield data
        yield event({"event": "final", **_answer(service, job, model, laid)}) + DONE
    except RequestError as error:
        yield event({"event": "error", "id": job.id, **of_error(error)}) + DONE

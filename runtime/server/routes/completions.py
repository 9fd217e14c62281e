"""``POST /v1/completions``: one prompt or a list of them, as text or as token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.choice import denoise_fields
from runtime.server.errors import of_error
from runtime.server.jobs import Job
from runtime.server.responses import DONE, EventStream, event, json_response
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.schemas import CompletionRequest
from runtime.server.service import Service, Started, answered, counts_usage, include_usage, new_id, stream_mode

router = APIRouter(route_class=OwnBody)
MAX_PROMPTS = 1024


@router.post("/completions", include_in_schema=False, response_model=None)  # a base URL without /v1
@router.post("/v1/completions", **takes(CompletionRequest, streams=True))
async def completions(request: Request) -> Response:
    """Continue prompts."""
    service: Service = request.app.state.service
    with service.admission():
        started = await _start(service, request)
    job = started.job
    head = {"id": job.id, "object": "text_completion", "created": int(time.time()), "model": started.model}
    if started.streams:
        return EventStream(job, _chunks(job, head, started))
    with job:
        await answered(request, job)
    return json_response({**head, "choices": _choices(job), "usage": job.usage()})


async def _start(service: Service, request: Request) -> Started:
    """Set the answers going; the body, which may be large, is not kept."""
    body = await service.body(request, CompletionRequest)
    model = service.model_name(body.model)
    mode = stream_mode(body)
    service.require()
    prompts = await service.preparer.encode_each(request, _list(body.prompt))
    n = 1 if body.n is None else body.n
    job = await service.job(request, body, prompts, id=new_id("cmpl"), mode=mode, n=n, model=model)
    return Started(job, model, bool(body.stream), include_usage(body), counts_usage(body), mode == "denoise")


def _list(prompt: Any) -> list[str | list[int]]:
    """One prompt or several, as several."""
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"prompt: {len(prompt)} prompts; at most {MAX_PROMPTS} in one request", param="prompt")
    return list(prompt)


def _choices(job: Job) -> list[dict[str, Any]]:
    return [
        {"index": choice.index, "text": choice.text, "logprobs": None, "finish_reason": choice.openai_reason}
        for choice in job.choices
    ]


async def _chunks(job: Job, head: dict[str, Any], started: Started) -> AsyncIterator[bytes]:
    usage, denoise = started.usage, started.denoise
    base = {**head, "usage": None} if usage else head
    try:
        async for batch in job.updates():
            data = []
            for update in batch:
                reason = update.choice.openai_reason if update.choice.finish_reason is not None else None
                if started.counts:
                    base["usage"] = job.usage()
                if not (update.text or reason or denoise):
                    continue
                fields = denoise_fields(update.output, update.text)
                text = fields.pop("text")
                choice = {"index": update.choice.index, "text": text, "logprobs": None, "finish_reason": reason}
                data.append(event({**base, "choices": [choice], **({"denoise": fields} if denoise else {})}))
            if data:
                yield b"".join(data)
        end = event({**base, "choices": [], "usage": job.usage()}) if usage else b""
        yield end + DONE
    except RequestError as error:
        yield event(of_error(error)) + DONE

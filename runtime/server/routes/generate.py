"""``POST /generate``: the project's own route, with the answer's whole story (runtime.md 2 and 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.choice import append_event, denoise_event
from runtime.server.errors import of_error
from runtime.server.jobs import Job
from runtime.server.responses import DONE, EventStream, event, json_response
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.schemas import GenerateRequest
from runtime.server.service import Service, answered, new_id, stream_mode

router = APIRouter(route_class=OwnBody)
DEFAULT_MAX_TOKENS = 512


@router.post("/generate", **takes(GenerateRequest, streams=True))
async def generate(request: Request) -> Response:
    """Continue a prompt (text or token ids)."""
    service: Service = request.app.state.service
    with service.admission():
        body = await service.body(request, GenerateRequest)
        model = service.model_name(body.model)
        mode = stream_mode(body, default="denoise")
        service.require()
        ids = (await service.preparer.encode_each(request, [body.prompt]))[0]
        job = await service.job(
            request,
            body,
            [ids],
            id=new_id("gen"),
            mode=mode,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            model=model,
        )
    if mode is not None:
        return EventStream(job, _events(service, job, body.prompt, mode))
    with job:
        await answered(request, job)
    return json_response(_answer(service, job, body.prompt))


def _answer(service: Service, job: Job, prompt: str | list[int]) -> dict[str, Any]:
    """The full answer; call it once the job has ended."""
    _, tokenizer = service.require()
    choice = job.choices[0]
    ids = choice.spec.prompt
    return {
        "id": job.id,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "nfe": choice.nfe,
        "finish_reason": choice.finish_reason,
        "full_text": (prompt if isinstance(prompt, str) else tokenizer.decode(ids)) + (choice.text or ""),
        "full_token_ids": ids + choice.token_ids,
        "usage": job.usage(),
        "timings": job.timings(),
    }


async def _events(service: Service, job: Job, prompt: str | list[int], mode: str) -> AsyncIterator[bytes]:
    make = denoise_event if mode == "denoise" else append_event
    try:
        async for batch in job.updates():
            made = (make(update.choice, update.output, update.text) for update in batch)
            data = b"".join(event(fields) for fields in made if fields is not None)
            if data:
                yield data
        yield event({"event": "final", **_answer(service, job, prompt)}) + DONE
    except RequestError as error:
        yield event({"event": "error", "id": job.id, **of_error(error)}) + DONE

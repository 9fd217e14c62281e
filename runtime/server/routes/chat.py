"""``POST /v1/chat/completions`` as the unmodified ``openai`` client speaks it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.choice import denoise_fields
from runtime.server.conversation import plain
from runtime.server.errors import of_error
from runtime.server.jobs import Job
from runtime.server.responses import DONE, EventStream, event, json_response
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.schemas import ChatRequest
from runtime.server.service import Service, Started, answered, counts_usage, include_usage, new_id, stream_mode

router = APIRouter(route_class=OwnBody)


@router.post("/chat/completions", include_in_schema=False, response_model=None)  # a base URL without /v1
@router.post("/v1/chat/completions", **takes(ChatRequest, streams=True))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    with service.admission():
        started = await _start(service, request)
    job = started.job
    head = {"id": job.id, "created": int(time.time()), "model": started.model}
    if started.streams:
        return EventStream(job, _chunks(job, head, started))
    with job:
        await answered(request, job)
    return json_response({**head, "object": "chat.completion", "choices": _choices(job), "usage": job.usage()})


async def _start(service: Service, request: Request) -> Started:
    """Set a conversation's answer going; its body, which may be large, is not kept."""
    body = await service.body(request, ChatRequest)
    model = service.model_name(body.model)
    mode = stream_mode(body)
    max_tokens, names = _limit(body)
    _without_calls(body)
    service.require()
    ids = await service.preparer.encode_chat(request, plain(body.messages), _template_kwargs(body))
    job = await service.job(
        request,
        body,
        [ids],
        id=new_id("chatcmpl"),
        mode=mode,
        names={"prompt": "messages", **names},
        max_tokens=max_tokens,
        n=1 if body.n is None else body.n,
        model=model,
    )
    return Started(job, model, bool(body.stream), include_usage(body), counts_usage(body), mode == "denoise")


def _limit(body: ChatRequest) -> tuple[int | None, dict[str, str]]:
    """`max_tokens` under either of its names, and the name that was used."""
    new, old = body.max_completion_tokens, body.max_tokens
    if new is None:
        return old, {}
    if old is not None and old != new:
        raise RequestError(
            "max_completion_tokens: differs from max_tokens; give one of them", param="max_completion_tokens"
        )
    return new, {"max_tokens": "max_completion_tokens"}


def _without_calls(body: ChatRequest) -> None:
    """Tools are no matter where they are not to be called. Raises RequestError where they may be."""
    for name, chosen in (("tools", body.tool_choice), ("functions", body.function_call)):
        if getattr(body, name) and chosen != "none":
            how = "tool_choice" if name == "tools" else "function_call"
            raise RequestError(
                f'{name}: is not built in this version; leave it out, or set {how} to "none"', param=name
            )


def _template_kwargs(body: ChatRequest) -> dict[str, Any] | None:
    """With `reasoning_effort`, which is a matter of templates that know it; an argument of that name goes first."""
    if body.reasoning_effort is None:
        return body.chat_template_kwargs
    return {"reasoning_effort": body.reasoning_effort, **(body.chat_template_kwargs or {})}


def _choices(job: Job) -> list[dict[str, Any]]:
    return [
        {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None,
            "finish_reason": choice.openai_reason,
        }
        for choice in job.choices
    ]


async def _chunks(job: Job, head: dict[str, Any], started: Started) -> AsyncIterator[bytes]:
    base = {**head, "object": "chat.completion.chunk"}
    usage, counts, denoise = started.usage, started.counts, started.denoise
    if usage:
        base["usage"] = None  # all chunks but the last, as OpenAI has it

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        if counts:
            more["usage"] = job.usage()
        return event({**base, "choices": [choice], **more})

    try:
        role = {"role": "assistant", "content": "", "refusal": None}
        yield b"".join(chunk(choice.index, role) for choice in job.choices)
        async for batch in job.updates():
            data = []
            for update in batch:
                index = update.choice.index
                if denoise:
                    fields = denoise_fields(update.output, update.text)
                    data.append(chunk(index, {"content": fields.pop("text")}, denoise=fields))
                elif update.text:
                    data.append(chunk(index, {"content": update.text}))
                if update.choice.finish_reason is not None:
                    data.append(chunk(index, {}, update.choice.openai_reason))
            if data:
                yield b"".join(data)
        end = event({**base, "choices": [], "usage": job.usage()}) if usage else b""
        yield end + DONE
    except RequestError as error:
        yield event(of_error(error)) + DONE

"""``POST /v1/responses`` as the unmodified ``openai`` client and its agents speak it; nothing is kept between calls."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.server.answers.responses import RESPONSE_EVENTS, ResponsesAnswer
from runtime.server.dialect import Dialect, answer
from runtime.server.jobs import Job, Update
from runtime.server.responses import named_event
from runtime.server.responses_body import ResponsesRequest
from runtime.server.responses_output import Output
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.service import Service
from runtime.server.talking import Talk
from runtime.server.tooling import Tooling

router = APIRouter(route_class=OwnBody)


@router.post("/responses", include_in_schema=False, response_model=None)  # a base URL without /v1
@router.post("/v1/responses", **takes(ResponsesRequest, ResponsesAnswer, RESPONSE_EVENTS, done=False))
async def responses(request: Request) -> Response:
    """Answer a conversation of items."""
    return await answer(request, _start)


async def _start(service: Service, request: Request) -> Responses:
    body = await service.body(request, ResponsesRequest)
    model = service.model_name(body.model)
    if body.max_output_tokens is not None and body.max_tokens is not None:
        raise RequestError("max_tokens: is max_output_tokens here; give that alone", param="max_tokens")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options: only with stream true; leave it out", param="stream_options")
    tools = body.tooling()
    talk = Talk(service.config, *service.require(), tools)
    try:
        messages = body.chat(tools.origins).plain()
        ids = await talk.prompt(request, service.preparer, messages, body.template_kwargs())
    except RequestError as error:
        raise error.renamed("messages", "input") from None
    job = await service.job(
        request,
        body,
        [ids],
        id=f"resp_{uuid.uuid4().hex}",
        mode="block_append" if body.stream else None,
        names=body.spelt,
        model=model,
        talk=talk,
    )
    return Responses(job, body, model, tools)


class Responses(Dialect):
    """OpenAI's response object, and the events with which it comes about."""

    def __init__(self, job: Job, body: ResponsesRequest, model: str, tools: Tooling) -> None:
        super().__init__(job, streams=bool(body.stream))
        self._told = 0
        self._output = Output(job.id.removeprefix("resp_"), self._event, tools.origins)
        spec = job.choices[0].spec
        reasoning = body.reasoning
        self._head = {
            "id": job.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "max_output_tokens": body.asked().get("max_tokens"),
            "temperature": spec.temperature,
            "top_p": spec.top_p,
            "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tools": [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "background": False,
            "store": False,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }

    def whole(self) -> dict[str, Any]:
        self._output.close(self._status())
        return self._ended()

    def take(self, update: Update) -> None:
        self.step(update)

    def begin(self) -> bytes:
        begun = self._object("in_progress")
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def step(self, update: Update) -> bytes:
        return b"".join(map(self._output.grow, update.grown))

    def end(self) -> bytes:
        data = self._output.close(self._status())
        ended = self._ended()
        return data + self._event(f"response.{ended['status']}", response=ended)

    def failed(self, error: RequestError) -> bytes:
        code = "invalid_prompt" if error.status == 400 else "server_error"
        failed = self._object("failed", error={"code": code, "message": error.message})
        return self._event("response.failed", response=failed)

    def _status(self) -> str:
        return "completed" if self.job.choices[0].finish_reason == "stop" else "incomplete"

    def _ended(self) -> dict[str, Any]:
        status = self._status()
        usage = self.job.usage()
        return self._object(
            status,
            incomplete_details=None if status == "completed" else {"reason": "max_output_tokens"},
            output=self._output.items,
            usage={
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
        )

    def _object(self, status: str, **more: Any) -> dict[str, Any]:
        nothing: dict[str, Any] = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._head, "status": status, **nothing, **more}

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        data = named_event(kind, sequence_number=self._told, **fields)
        self._told += 1
        return data

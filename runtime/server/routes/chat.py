"""``POST /v1/chat/completions`` as the unmodified ``openai`` client speaks it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.output import denoise_fields
from runtime.server.answers.common import ErrorResponse
from runtime.server.answers.openai import ChatAnswer, ChatChunk
from runtime.server.conversation import continues, ending_arguments, plain, template_arguments
from runtime.server.dialect import answer
from runtime.server.jobs import Job, Update
from runtime.server.logprobs import revealed_of
from runtime.server.openai_events import OpenAIEvents, Told
from runtime.server.openai_parts import delta, message, parts_of
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.schemas import ChatRequest
from runtime.server.service import Service, new_id, stream_mode
from runtime.server.talking import Talk
from runtime.server.tooling import tooling, without_functions
from runtime.tokenizer.token_bytes import TokenByteDecoder

router = APIRouter(route_class=OwnBody)


@router.post("/chat/completions", include_in_schema=False, response_model=None)  # a base URL without /v1
@router.post("/v1/chat/completions", **takes(ChatRequest, ChatAnswer, (ChatChunk, ErrorResponse)))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    return await answer(request, _start)


async def _start(service: Service, request: Request) -> Chat:
    body = await service.body(request, ChatRequest)
    model = service.model_name(body.model)
    mode = stream_mode(body)
    max_tokens, names = _limit(body)
    without_functions(body.functions, body.function_call)
    talk = Talk(service.config, *service.require(), tooling(body.tools, body.tool_choice, body.parallel_tool_calls))
    arguments = template_arguments(body.chat_template_kwargs, reasoning_effort=body.reasoning_effort)
    messages = plain(body.messages)
    variables = ending_arguments(body, arguments)
    ids = await talk.prompt(request, service.preparer, messages, variables, continued=continues(body, messages))
    job = await service.job(
        request,
        body,
        [ids],
        id=new_id("chatcmpl"),
        mode=mode,
        names={"prompt": "messages", "logprobs": "top_logprobs", **names},
        max_tokens=max_tokens,
        n=1 if body.n is None else body.n,
        model=model,
        talk=talk,
    )
    return Chat(job, Told.of(body, model, mode), service.require()[1].byte_decoder)


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


class Chat(OpenAIEvents):
    """OpenAI's chat.completion objects."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, job: Job, told: Told, pieces: TokenByteDecoder) -> None:
        super().__init__(job, told)
        self._revealed = revealed_of(job.choices, pieces)
        self._settled: list[Any] = []

    async def settle(self) -> None:
        if not self.streams:
            self._settled = [await revealed.settled() for revealed in self._revealed]

    def choices(self) -> list[dict[str, Any]]:
        return [
            {
                "index": choice.index,
                "message": message(parts_of(choice)),
                "logprobs": self._settled[choice.index],
                "finish_reason": choice.openai_reason,
            }
            for choice in self.job.choices
        ]

    def begin(self) -> bytes:
        role = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._piece(choice.index, role) for choice in self.job.choices)

    def step(self, update: Update) -> bytes:
        index = update.choice.index
        deltas = [delta(grown) for grown in update.grown]
        told = self._revealed[index].told(update)
        if told is not None and told["content"] and not deltas:
            deltas.append({"content": ""})  # tokens that no text belongs to
        data = []
        if self.told.denoise:
            fields = denoise_fields(update.output, "")
            del fields["text"]
            data.append(self._piece(index, deltas.pop(0) if deltas else {"content": ""}, told=told, denoise=fields))
            told = None
        for each in deltas:
            data.append(self._piece(index, each, told=told))
            told = None  # each token is told once
        if update.ended:
            data.append(self._piece(index, {}, update.choice.openai_reason))
        return b"".join(data)

    def _piece(
        self, index: int, delta: dict[str, Any], reason: str | None = None, *, told: Any = None, **more: Any
    ) -> bytes:
        return self.chunk({"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}, **more)

"""``POST /v1/chat/completions``, compatible with OpenAI clients."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.output import denoise_fields
from runtime.server.context import ServerContext, new_id, stream_mode
from runtime.server.engine_client.generation_job import GenerationJob, OutputDelta
from runtime.server.http_responses import ErrorResponse
from runtime.server.openai.chat_context import ChatContext
from runtime.server.openai.chat_messages import (
    continues_last_message,
    ending_variables,
    template_messages,
    template_variables,
)
from runtime.server.openai.logprobs import logprob_streamers
from runtime.server.openai.protocol import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    Reason,
)
from runtime.server.openai.streaming import OpenAIHandler, StreamSettings, assistant_message, chat_delta, output_parser
from runtime.server.openai.tools import check_legacy_functions, parse_tools
from runtime.server.openapi import RawBodyRoute, json_route
from runtime.server.preprocessing.request_specs import GenerationInputs
from runtime.server.serving_base import handle_generation
from runtime.tokenizer.token_bytes import TokenByteDecoder

router = APIRouter(route_class=RawBodyRoute, tags=["OpenAI"])


@router.post("/chat/completions", include_in_schema=False, response_model=None)  # a base URL without /v1
@router.post(
    "/v1/chat/completions",
    summary="Create a chat completion",
    **json_route(ChatRequest, ChatAnswer, (ChatChunk, ErrorResponse)),
)
async def chat_completions(request: Request) -> Response:
    """Creates a chat completion."""
    return await handle_generation(request, _start)


async def _start(context: ServerContext, request: Request) -> ChatHandler:
    body = await context.body(request, ChatRequest)
    model = context.model_name(body.model)
    mode = stream_mode(body)
    max_tokens, names = _limit(body)
    check_legacy_functions(body.functions, body.function_call)
    chat = ChatContext(
        context.config, *context.require(), parse_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    )
    arguments = template_variables(body.chat_template_kwargs, reasoning_effort=body.reasoning_effort)
    messages = template_messages(body.messages)
    variables = ending_variables(body, arguments)
    ids = await chat.prompt(
        request, context.preprocessor, messages, variables, continued=continues_last_message(body, messages)
    )
    job = await context.submit(
        GenerationInputs(
            request,
            body,
            [ids],
            id=new_id("chatcmpl"),
            stream_mode=mode,
            names={"prompt": "messages", "logprobs": "top_logprobs", **names},
            max_tokens=max_tokens,
            n=1 if body.n is None else body.n,
            model=model,
            chat=chat,
        )
    )
    return ChatHandler(job, StreamSettings.of(body, model, mode), context.require()[1].byte_decoder)


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


class ChatHandler(OpenAIHandler):
    """OpenAI's chat.completion objects."""

    chunk_object = "chat.completion.chunk"

    def __init__(self, job: GenerationJob, settings: StreamSettings, pieces: TokenByteDecoder) -> None:
        super().__init__(job, settings)
        self._logprobs = logprob_streamers(job.choices, pieces)
        self._full_logprobs: list[Any] = []

    async def finalize(self) -> None:
        if not self.streams:
            self._full_logprobs = [await revealed.full_chat() for revealed in self._logprobs]

    def full_response(self) -> ChatAnswer:
        choices: list[ChatChoice] = [
            {
                "index": choice.index,
                "message": assistant_message(output_parser(choice)),
                "logprobs": self._full_logprobs[choice.index],
                "finish_reason": choice.openai_reason,
            }
            for choice in self.job.choices
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self.job.usage()}

    def on_start(self) -> bytes:
        role: ChatDelta = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(choice.index, role) for choice in self.job.choices)

    def on_output(self, update: OutputDelta) -> bytes:
        index = update.choice.index
        deltas: list[ChatDelta] = [chat_delta(grown) for grown in update.deltas]
        logprobs = self._logprobs[index].chat_delta(update)
        if logprobs is not None and logprobs["content"] and not deltas:
            deltas.append({"content": ""})  # tokens that no text belongs to
        data = []
        if self.settings.denoise:
            fields = denoise_fields(update.output, "")
            del fields["text"]
            data.append(
                self._chunk(index, deltas.pop(0) if deltas else {"content": ""}, logprobs=logprobs, denoise=fields)
            )
            logprobs = None
        for each in deltas:
            data.append(self._chunk(index, each, logprobs=logprobs))
            logprobs = None  # once per token
        if update.ended:
            data.append(self._chunk(index, {}, update.choice.openai_reason))
        return b"".join(data)

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        reason: Reason | None = None,
        *,
        logprobs: ChatLogprobs | None = None,
        **more: Any,
    ) -> bytes:
        return self.chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}, **more)

"""``POST /generate``: the route with all fields of an answer (docs/server.md#routes, docs/server.md#streaming)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.validation import refuse
from runtime.server.answers.own import AppendEvent, DenoiseEvent, ErrorEvent, GenerateAnswer, GenerateFinal
from runtime.server.conversation import (
    NO_GRAMMAR_MESSAGE,
    check_no_chat_fields,
    continues_last_message,
    ending_variables,
    template_messages,
)
from runtime.server.dialect import handle_generation
from runtime.server.jobs import GenerationJob, OutputDelta
from runtime.server.logprobs import LogprobStreamer, encoded, generate_logprobs, in_chunks
from runtime.server.own_events import GenerateEvents
from runtime.server.routes.documented import RawBodyRoute, json_route
from runtime.server.schemas import GenerateRequest
from runtime.server.service import ServerContext, new_id, stream_mode
from runtime.server.structured import parse_response_format
from runtime.server.untemplated import template_warning

router = APIRouter(route_class=RawBodyRoute)
DEFAULT_MAX_TOKENS = 512
EVENTS = (DenoiseEvent, AppendEvent, GenerateFinal, ErrorEvent)


@router.post("/generate", **json_route(GenerateRequest, GenerateAnswer, EVENTS))
async def generate(request: Request) -> Response:
    """Continue a prompt (text or token ids), or answer a chat."""
    return await handle_generation(request, _start)


async def _start(context: ServerContext, request: Request) -> GenerateHandler:
    body = await context.body(request, GenerateRequest)
    model = context.model_name(body.model)
    mode = stream_mode(body, default="denoise")
    context.require()
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt")
    if body.prompt is not None and body.chat_template_kwargs is not None:
        raise RequestError("chat_template_kwargs: only with messages", param="chat_template_kwargs")
    continued = False
    if body.prompt is not None:
        check_no_chat_fields(body)
        ids = (await context.preprocessor.encode_each(request, [body.prompt]))[0]
    else:
        messages = template_messages(body.messages or [])
        variables, continued = ending_variables(body, body.chat_template_kwargs), continues_last_message(body, messages)
        ids = await context.preprocessor.encode_chat(request, messages, variables, continued=continued)
        requested, name = parse_response_format(body)
        if continued and requested is not None:
            raise refuse(name, NO_GRAMMAR_MESSAGE)
    job = await context.job(
        request,
        body,
        [ids],
        id=new_id("gen"),
        mode=mode,
        names={} if body.messages is None else {"prompt": "messages"},
        default_max_tokens=DEFAULT_MAX_TOKENS,
        model=model,
        continued=continued,
    )
    return GenerateHandler(job, mode, context, body.prompt if isinstance(body.prompt, str) else None)


class GenerateHandler(GenerateEvents):
    """`text`: the prompt's, where it came as one."""

    def __init__(self, job: GenerationJob, mode: str | None, context: ServerContext, text: str | None) -> None:
        super().__init__(job, mode)
        self._info, self._tokenizer = context.require()
        self._text = text
        self._logprobs = LogprobStreamer(job.choices[0], self._tokenizer.byte_decoder)
        self._full_logprobs: dict[str, Any] = {}

    def event_fields(self, update: OutputDelta) -> dict[str, Any] | None:
        """With the log-probabilities of tokens whose text is out, where they are asked for."""
        fields = super().event_fields(update)
        if update.choice.spec.logprobs is None or fields is None:
            return fields
        entries = [entry for entry, _ in self._logprobs.take_new(update)]
        return {**fields, "logprobs": generate_logprobs(entries, self._tokenizer.byte_decoder)}

    async def finalize(self) -> None:
        choice = self.job.choices[0]
        if choice.spec.logprobs is None:
            return
        entries: list[dict[str, Any]] = []
        async for some in in_chunks(choice.token_logprobs or [], 1 + choice.spec.logprobs):
            entries += generate_logprobs(some, self._tokenizer.byte_decoder)
        self._full_logprobs = {"logprobs": encoded(entries)}

    def full_response(self) -> dict[str, Any]:
        choice = self.job.choices[0]
        ids = choice.spec.prompt
        prompt = self._tokenizer.decode(ids) if self._text is None else self._text
        return {
            "id": self.job.id,
            "text": choice.text,
            "token_ids": choice.token_ids,
            "nfe": choice.nfe,
            "finish_reason": choice.finish_reason,
            **self._full_logprobs,
            "full_text": prompt + (choice.text or ""),
            "full_token_ids": ids + choice.token_ids,
            "usage": self.job.usage(),
            "timings": self.job.timings(),
            **template_warning(self.job.choices, self._info, self._tokenizer),
        }

"""``POST /generate``: the route with all fields of an answer.

See docs/reference/api.md#routes, docs/guide/streaming.md.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.validation import refuse
from runtime.server.answers.own import AppendEvent, DenoiseEvent, ErrorEvent, GenerateAnswer, GenerateFinal
from runtime.server.conversation import NO_GRAMMAR, continues, ending_arguments, plain, without_messages
from runtime.server.dialect import answer
from runtime.server.jobs import Job, Update
from runtime.server.logprobs import Revealed, in_steps, of_own, ready
from runtime.server.own_events import OwnEvents
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.schemas import GenerateRequest
from runtime.server.service import Service, new_id, stream_mode
from runtime.server.structured import form
from runtime.server.untemplated import warned

router = APIRouter(route_class=OwnBody)
DEFAULT_MAX_TOKENS = 512
EVENTS = (DenoiseEvent, AppendEvent, GenerateFinal, ErrorEvent)


@router.post("/generate", **takes(GenerateRequest, GenerateAnswer, EVENTS))
async def generate(request: Request) -> Response:
    """Continue a prompt (text or token ids), or answer a chat."""
    return await answer(request, _start)


async def _start(service: Service, request: Request) -> Generated:
    body = await service.body(request, GenerateRequest)
    model = service.model_name(body.model)
    mode = stream_mode(body, default="denoise")
    service.require()
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt")
    if body.prompt is not None and body.chat_template_kwargs is not None:
        raise RequestError("chat_template_kwargs: only with messages", param="chat_template_kwargs")
    continued = False
    if body.prompt is not None:
        without_messages(body)
        ids = (await service.preparer.encode_each(request, [body.prompt]))[0]
    else:
        messages = plain(body.messages or [])
        variables, continued = ending_arguments(body, body.chat_template_kwargs), continues(body, messages)
        ids = await service.preparer.encode_chat(request, messages, variables, continued=continued)
        requested, name = form(body)
        if continued and requested is not None:
            raise refuse(name, NO_GRAMMAR)
    job = await service.job(
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
    return Generated(job, mode, service, body.prompt if isinstance(body.prompt, str) else None)


class Generated(OwnEvents):
    """`text`: the prompt's, where it came as one."""

    def __init__(self, job: Job, mode: str | None, service: Service, text: str | None) -> None:
        super().__init__(job, mode)
        self._info, self._tokenizer = service.require()
        self._text = text
        self._revealed = Revealed(job.choices[0], self._tokenizer.byte_decoder)
        self._told: dict[str, Any] = {}

    def fields(self, update: Update) -> dict[str, Any] | None:
        """With the log-probabilities of tokens whose text is out, where they are asked for."""
        fields = super().fields(update)
        if update.choice.spec.logprobs is None or fields is None:
            return fields
        told = [entry for entry, _ in self._revealed.fresh(update)]
        return {**fields, "logprobs": of_own(told, self._tokenizer.byte_decoder)}

    async def settle(self) -> None:
        choice = self.job.choices[0]
        if choice.spec.logprobs is None:
            return
        entries: list[dict[str, Any]] = []
        async for some in in_steps(choice.token_logprobs or [], 1 + choice.spec.logprobs):
            entries += of_own(some, self._tokenizer.byte_decoder)
        self._told = {"logprobs": ready(entries)}

    def whole(self) -> dict[str, Any]:
        choice = self.job.choices[0]
        ids = choice.spec.prompt
        prompt = self._tokenizer.decode(ids) if self._text is None else self._text
        return {
            "id": self.job.id,
            "text": choice.text,
            "token_ids": choice.token_ids,
            "nfe": choice.nfe,
            "finish_reason": choice.finish_reason,
            **self._told,
            "full_text": prompt + (choice.text or ""),
            "full_token_ids": ids + choice.token_ids,
            "usage": self.job.usage(),
            "timings": self.job.timings(),
            **warned(self.job.choices, self._info, self._tokenizer),
        }

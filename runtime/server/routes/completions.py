"""``POST /v1/completions``: one prompt or a list of them, as text or as token ids."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.request.output import CompletionState, denoise_fields
from runtime.request.sampling_params import MAX_COUNT
from runtime.request.validation import integer
from runtime.server.answers.common import ErrorResponse
from runtime.server.answers.openai import CompletionAnswer, CompletionChunk
from runtime.server.dialect import answer
from runtime.server.echo import Echo, echo_of
from runtime.server.jobs import Job, Update
from runtime.server.logprobs import ending, in_steps, of_completion, ready, revealed_of
from runtime.server.openai_events import OpenAIEvents, Told
from runtime.server.routes.documented import OwnBody, takes
from runtime.server.schemas import CompletionRequest
from runtime.server.service import Service, new_id, stream_mode
from runtime.server.untemplated import warned

router = APIRouter(route_class=OwnBody)
MAX_PROMPTS = 1024
HOLE = 16  # tokens between prompt and suffix that a request asks for which does not say: OpenAI's


@router.post("/completions", include_in_schema=False, response_model=None)  # a base URL without /v1
@router.post("/v1/completions", **takes(CompletionRequest, CompletionAnswer, (CompletionChunk, ErrorResponse)))
async def completions(request: Request) -> Response:
    """Continue prompts."""
    return await answer(request, _start)


async def _start(service: Service, request: Request) -> Completion:
    body = await service.body(request, CompletionRequest)
    model = service.model_name(body.model)
    mode = stream_mode(body)
    service.require()
    asked = _list(body.prompt)
    echo = echo_of(body, asked)
    prompts = await service.preparer.encode_each(request, asked)
    hole, given = await _behind(service, request, body, max(map(len, prompts)))
    job = await service.job(
        request,
        body,
        prompts,
        id=new_id("cmpl"),
        mode=mode,
        max_tokens=hole + len(given) if hole is not None else 1 if echo and echo.silent else None,
        n=1 if body.n is None else body.n,
        model=model,
        given=given or None,
        most=hole,
        echo=echo,
    )
    return Completion(job, Told.of(body, model, mode), service, echo)


async def _behind(
    service: Service, request: Request, body: CompletionRequest, prompt: int
) -> tuple[int | None, dict[int, int]]:
    """How long the hole between prompt and suffix is, and what stands behind it, by offsets from the prompt's end;
    without a suffix there is neither. `prompt`: tokens of the longest."""
    if not body.suffix:
        return None, {}
    for name in ("ignore_eos", "max_nfe", "max_repetition_run"):
        if getattr(body, name) is not None:
            raise RequestError(
                f"{name}: with a suffix max_tokens says how long the answer is; leave it out", param=name
            )
    info = service.require()[0]
    wanted = service.limited(
        request, integer("max_tokens", body.max_tokens, 1, MAX_COUNT, default=HOLE), info, "max_tokens"
    )
    room = info.max_model_len - prompt
    (behind,) = await service.preparer.encode_pieces(request, [body.suffix], "suffix", room - 1)
    hole = min(wanted, room - len(behind))  # as any answer, what there is room for
    return hole, {hole + i: token for i, token in enumerate(behind)}


def _list(prompt: Any) -> list[str | list[int]]:
    """One prompt or several, as several."""
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"prompt: {len(prompt)} prompts; at most {MAX_PROMPTS} in one request", param="prompt")
    return list(prompt)


class Completion(OpenAIEvents):
    """OpenAI's text_completion objects."""

    object = chunk_object = "text_completion"

    def __init__(self, job: Job, told: Told, service: Service, echo: Echo | None) -> None:
        super().__init__(job, told)
        self._info, self._tokenizer = service.require()
        self._echo = echo
        self._revealed = revealed_of(job.choices, self._tokenizer.byte_decoder)
        self._settled: list[Any] = []

    def whole(self) -> dict[str, Any]:
        return {**super().whole(), **warned(self.job.choices, self._info, self._tokenizer)}

    async def settle(self) -> None:
        if not self.streams:
            self._settled = [await self._all_told(choice) for choice in self.job.choices]

    def choices(self) -> list[dict[str, Any]]:
        return [self._whole(choice) for choice in self.job.choices]

    def _whole(self, choice: CompletionState) -> dict[str, Any]:
        told = self._settled[choice.index]
        text = self._before(choice) + (choice.text or "")
        return {"index": choice.index, "text": text, "logprobs": told, "finish_reason": choice.openai_reason}

    async def _all_told(self, choice: CompletionState) -> Any:
        """Of the prompt's tokens, where they are told too, and the answer's; None where nobody asks."""
        if choice.spec.logprobs is None:
            return None
        prompt = [] if self._echo is None else self._echo.entries(choice)
        answer = [*self._revealed[choice.index].fresh(), *ending(choice)]
        told = of_completion([], self._tokenizer.byte_decoder)
        for entries, base in ((prompt, 0), (answer, len(self._before(choice)))):
            async for some in in_steps(entries, 1 + choice.spec.logprobs):
                for name, values in of_completion(some, self._tokenizer.byte_decoder, base).items():
                    told[name] += values
        return ready(told)

    def _before(self, choice: CompletionState) -> str:
        """What stands before its answer in its text."""
        return "" if self._echo is None else self._echo.text(choice)

    def _logprobs(self, update: Update) -> dict[str, Any] | None:
        """Of what is new of the answer's tokens; None where nobody asks."""
        choice = update.choice
        if choice.spec.logprobs is None:
            return None
        told = self._revealed[choice.index].fresh(update)
        if update.ended:
            told += ending(choice)
        return of_completion(told, self._tokenizer.byte_decoder, len(self._before(choice)))

    def begin(self) -> bytes:
        """The prompts, and the ends of answers that nobody wants."""
        if self._echo is None:
            return b""
        return b"".join(
            self.chunk(
                {
                    "index": choice.index,
                    "text": self._before(choice),
                    "logprobs": None,
                    "finish_reason": None if choice.finish_reason is None else choice.openai_reason,
                }
            )
            for choice in self.job.choices
        )

    def step(self, update: Update) -> bytes:
        choice = update.choice
        reason = choice.openai_reason if update.ended else None
        told = self._logprobs(update)
        if not (update.text or reason or self.told.denoise or (told and told["tokens"])):
            return b""
        fields = denoise_fields(update.output, update.text)
        piece = {"index": choice.index, "text": fields.pop("text"), "logprobs": told, "finish_reason": reason}
        more = {"denoise": fields} if self.told.denoise else {}
        warning = warned([choice], self._info, self._tokenizer) if reason else {}
        return self.chunk(piece, **more, **warning)

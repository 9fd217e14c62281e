"""``POST /v1/completions``, compatible with OpenAI clients: one prompt or a list, as text or as token ids."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from runtime.request.output import CompletionState
from runtime.request.sampling_params import MAX_COUNT
from runtime.request.validation import integer, refuse
from runtime.server.http_protocol.error_responses import ErrorResponse
from runtime.server.openai import protocol
from runtime.server.openai.chat import OpenAIHandler
from runtime.server.openai.logprobs import CompletionLogprobStreamer, parse_echo
from runtime.server.serving.context import ServerContext
from runtime.server.serving.generation import check_unset
from runtime.server.serving.handler import events
from runtime.server.serving.job import OutputDelta
from runtime.server.serving.routes import RawBodyRoute, json_route
from runtime.server.serving.specs import Generation

router = APIRouter(route_class=RawBodyRoute, tags=["OpenAI"])
MAX_PROMPTS = 1024
DEFAULT_GAP = 16  # default length of the output between prompt and suffix, as in the OpenAI API


async def _add_suffix(
    context: ServerContext, generation: Generation, body: protocol.CompletionRequest, suffix: str
) -> None:
    """Sets `max_tokens` and pinned tokens of `generation` for the gap and the suffix after it. Raises RequestError."""
    message = "cannot be combined with suffix, where max_tokens is the length of the output; leave it out"
    check_unset(body, ["ignore_eos", "max_nfe", "max_repetition_run"], message)
    request, info = generation.request, generation.loaded[0]
    max_tokens = DEFAULT_GAP if body.max_tokens is None else integer("max_tokens", body.max_tokens, 1, MAX_COUNT)
    requested = context.limit_tokens(request, max_tokens, info, "max_tokens")
    free_tokens = info.max_model_len - max(map(len, generation.prompts))
    (behind,) = await context.preprocessor.encode_pieces(
        request, [suffix], "suffix", free_tokens - 1, parse_special=body.parse_special is True
    )
    generation.pin_suffix(min(requested, free_tokens - len(behind)), behind)  # like any output, at most the free tokens


def _list(prompt: Any) -> list[str | list[int]]:
    """Returns the prompts as a list."""
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise refuse("prompt", f"{len(prompt)} prompts; at most {MAX_PROMPTS} in one request")
    return list(prompt)


class _Tokens(protocol.TokenFields, protocol.PromptIds):
    pass


class CompletionHandler(OpenAIHandler):
    """OpenAI's text_completion objects."""

    chunk_object = "text_completion"
    logprob_streamer = CompletionLogprobStreamer
    event_types = (protocol.CompletionChunk, ErrorResponse)

    def full_response(self) -> protocol.CompletionAnswer:
        return {
            **self._head,
            "object": "text_completion",
            "choices": [self._choice(choice) for choice in self.job.choices],
            "usage": self.job.usage(),
            **self._warning(self.job.choices),
        }

    def _choice(self, choice: CompletionState) -> protocol.CompletionChoice:
        logprobs, text = self._full_logprobs[choice.index], self._echoed_text(choice) + (choice.text or "")
        return {
            "index": choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.openai_reason,
            **self._tokens(choice),
        }

    def _tokens(self, choice: CompletionState) -> _Tokens:
        return {**self.token_fields(choice), **self.prompt_ids(choice)}

    def _echoed_text(self, choice: CompletionState) -> str:
        """Returns the echoed prompt, "" without echo."""
        return "" if self._echo is None else self._echo.text(choice)

    def on_start(self) -> bytes:
        """Returns chunks with the echoed prompts, and the ends of completions of no tokens."""
        if self._echo is None:
            return b""
        chunks = []
        for i, choice in enumerate(self.job.choices):
            reason = None if choice.finish_reason is None else choice.openai_reason
            tokens = self._tokens(choice) if reason else {}
            chunks.append(self.chunk(i, reason, None, {}, text=self._echoed_text(choice), **tokens))
        return events(*chunks)

    def on_output(self, update: OutputDelta) -> bytes:
        choice = update.choice
        reason = choice.openai_reason if update.ended else None
        logprobs = self.take_logprobs(update)
        if not (update.text or reason or self._denoise or (logprobs and logprobs["tokens"])):
            return b""
        warning = self._warning([choice]) if reason else {}
        tokens = self._tokens(choice) if reason else {}
        fields = {**self.step(update), **warning}
        return events(self.chunk(choice.index, reason, logprobs, fields, text=update.text, **tokens))


@json_route(router, "/v1/completions", "Complete prompts", short="/completions")
async def completions(context: ServerContext, request: Request, body: protocol.CompletionRequest) -> CompletionHandler:
    """Completes prompts."""
    generation = Generation(context, request, body, "cmpl-")
    prompts = _list(body.prompt)
    generation.echo = parse_echo(body, prompts)
    await generation.encode_prompts(prompts, parse_special=body.parse_special is True, suffix=body.suffix)
    if body.suffix:
        await _add_suffix(context, generation, body, body.suffix)
    elif generation.echo is not None and generation.echo.silent:
        generation.max_tokens = 1
    return CompletionHandler(await generation.submit(), body, generation)

"""Echo of prompts in completions, with log-probabilities of their tokens if requested."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.request.output import CompletionState, IdsOnly, TokenLogprob
from runtime.request.resolve import score_spec
from runtime.server.openai.logprobs import MAX_LOGPROBS
from runtime.server.openai.protocol import CompletionRequest
from runtime.tokenizer import Tokenizer
from runtime.tokenizer.detokenizer import OffsetTracker, TokenOffset


def parse_echo(body: CompletionRequest, prompts: Sequence[str | list[int]]) -> PromptEcho | None:
    """Returns the echo, None if not requested. Raises RequestError for fields that conflict with it or require it."""
    scores = bool(body.echo) and body.set_fields().get("logprobs") is not None
    if body.prompt_logprobs_stride is not None and not scores:
        name = "prompt_logprobs_stride"
        raise RequestError(f"{name}: only with echo true and logprobs; leave it out", param=name)
    if not body.echo:
        return None
    if body.suffix:
        raise RequestError("echo: does not go with a suffix; leave one of them out", param="echo")
    if scores and body.stream:
        raise RequestError("echo: a prompt with logprobs is told whole; leave stream or logprobs out", param="echo")
    return PromptEcho(prompts, silent=body.max_tokens == 0, stride=body.prompt_logprobs_stride or 1)


class PromptEcho:
    """Of one request.

    Attributes:
        silent: no answers are wanted.
        scores: what is to be run, one of each prompt of several tokens.
        texts: the prompts'.
    """

    def __init__(self, prompts: Sequence[str | list[int]], *, silent: bool, stride: int = 1) -> None:
        """`silent`: no answers are wanted. `stride`: tokens of a prompt that a forward scores."""
        self._prompts = prompts
        self.silent = silent
        self._stride = stride
        self._choices_per_prompt = 1  # answers to a prompt
        self._scored: dict[int, CompletionState] = {}
        self._ids: list[list[int]] = []
        self._adds_bos = False
        self.texts: list[str] = []

    def attach(self, choices: Sequence[CompletionState], each: int, info: EngineInfo, tokenizer: Tokenizer) -> None:
        """What is to be run for these answers, so many to each prompt. Raises RequestError where prompts cannot be
        scored."""
        self._choices_per_prompt, self._pieces = each, tokenizer.byte_decoder
        self._adds_bos = info.bos_token_id is not None
        count = sum(len(choice.spec.prompt) * (1 + (choice.spec.logprobs or 0)) for choice in choices)
        if choices[0].spec.logprobs is not None and count > MAX_LOGPROBS:
            raise RequestError(
                f"echo: the prompts have {count} log-probabilities to tell, n and logprobs counted in; at most "
                f"{MAX_LOGPROBS} in one answer: send fewer prompts, or a smaller n or logprobs", param="echo",
            )  # fmt: skip
        for number, choice in enumerate(choices[::each]):
            prompt, spec = self._prompts[number], choice.spec
            self._ids.append(spec.prompt)
            self.texts.append(prompt if isinstance(prompt, str) else tokenizer.decode(prompt))
            if spec.logprobs is not None and len(spec.prompt) > 1:
                scored = score_spec(
                    spec.prompt, info, id=f"{spec.id}-prompt", param="echo", logprobs=spec.logprobs,
                    tokens_per_step=self._stride, cache_salt=spec.cache_salt, parent_id=spec.parent_id,
                    tenant=spec.tenant, adapter=spec.adapter,
                )  # fmt: skip
                self._scored[number] = CompletionState(number, scored, IdsOnly())
        if self.silent:
            for choice in choices:
                choice.finish_reason = "length"

    @property
    def scores(self) -> list[CompletionState]:
        return list(self._scored.values())

    def text(self, choice: CompletionState) -> str:
        """Of the prompt that a choice answers."""
        return self.texts[choice.index // self._choices_per_prompt]

    def entries(self, choice: CompletionState) -> list[tuple[TokenLogprob, TokenOffset]]:
        """Of that prompt's tokens, once they are scored; of its first token nothing is known."""
        number = choice.index // self._choices_per_prompt
        ids = self._ids[number]
        scored = self._scored.get(number)
        known: list[TokenLogprob] = [] if scored is None else scored.token_logprobs or []
        before = int(self._adds_bos and isinstance(self._prompts[number], str))  # not part of the text
        offsets = [TokenOffset(0, 0)] * before + OffsetTracker(self._pieces).push(ids[before:])
        return list(zip([TokenLogprob(ids[0], None, []), *known], offsets, strict=True))

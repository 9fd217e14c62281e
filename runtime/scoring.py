"""Scoring of prompts by ``LLM``: log-probabilities of a text after a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from runtime.errors import RequestError
from runtime.request.output import CompletionState, IdsOnly, TokenLogprob
from runtime.request.resolve import check_ids, check_prompt
from runtime.request.sampling_params import MAX_LOGPROBS
from runtime.request.scoring import MAX_TOKENS_PER_STEP, score_spec
from runtime.request.validation import integer

if TYPE_CHECKING:
    from runtime.engine.engine import Engine
    from runtime.tokenizer import Tokenizer


class SupportsScoring(Protocol):
    """The parts of an ``LLM`` that scoring uses."""

    engine: Engine
    _ids: Iterator[int]

    def _encode(self, prompt: Any) -> list[int]: ...
    def _tokenizer(self, what: str) -> Tokenizer: ...
    def _finish(self, all_choices: list[CompletionState]) -> None: ...


class ScoringMixin:
    def score(
        self: SupportsScoring, texts: Sequence[tuple[Any, str | Sequence[int]]], *, top: int = 0, stride: int = 1,
        adapter: str | None = None,
    ) -> list[list[TokenLogprob]]:  # fmt: skip
        """Returns the log-probability of each token of a text after a prompt.

        See docs/guide/decoding.md#log-probabilities-of-a-prompt.

        Args:
            texts: Pairs of a prompt and the text that follows it.
            top: Number of alternatives per token.
            stride: Tokens per forward.
            adapter: Name of an adapter.

        Raises:
            RequestError: A text is empty, or prompts cannot be scored.
        """
        integer("top", top, 0, MAX_LOGPROBS)
        integer("stride", stride, 1, MAX_TOKENS_PER_STEP)
        scored = []
        for n, (prompt, text) in enumerate(texts):
            ids = check_prompt(self._encode(prompt), self.engine.info)
            first = len(ids)
            ids += self._tokenizer("text").encode(text) if isinstance(text, str) else list(text)
            check_ids(ids, self.engine.info, "text")
            if first == len(ids):
                raise RequestError(f"text: the one of pair {n} is empty; give at least one token", param="text")
            spec = score_spec(
                ids, self.engine.info, id=f"llm-{next(self._ids)}", param="text", prompt_len=first, logprobs=top,
                tokens_per_step=stride, adapter=self.engine.lora_manager.resolve(adapter),
            )  # fmt: skip
            scored.append(CompletionState(n, spec, IdsOnly()))
        self._finish(scored)
        return [choice.token_logprobs or [] for choice in scored]

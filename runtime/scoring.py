"""What an ``LLM`` does beside answering: how probable a text is after a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from runtime.errors import RequestError
from runtime.request.output import Choice, IdsOnly, TokenLogprob
from runtime.request.resolve import check_ids, check_prompt
from runtime.request.sampling_params import MOST_TOLD
from runtime.request.scoring import MOST_STRIDE, score_spec
from runtime.request.validation import integer

if TYPE_CHECKING:
    from runtime.engine.engine import Engine
    from runtime.tokenizer import Tokenizer


class Scores(Protocol):
    """What it takes of an ``LLM``."""

    engine: Engine
    _ids: Iterator[int]

    def _encode(self, prompt: Any) -> list[int]: ...
    def _tokenizer(self, what: str) -> Tokenizer: ...
    def _finish(self, all_choices: list[Choice]) -> None: ...


class Scoring:
    def score(
        self: Scores, texts: Sequence[tuple[Any, str | Sequence[int]]], *, top: int = 0, stride: int = 1,
        adapter: str | None = None,
    ) -> list[list[TokenLogprob]]:  # fmt: skip
        """Of pairs of a prompt and what follows it, the log-probability of each token that follows, with `top` of the
        likeliest in its place; `stride` tokens a forward (docs/decoding.md, Log-probabilities of a prompt).

        Raises:
            RequestError: for an empty one, and where prompts cannot be scored.
        """
        integer("top", top, 0, MOST_TOLD)
        integer("stride", stride, 1, MOST_STRIDE)
        scored = []
        for n, (prompt, text) in enumerate(texts):
            ids = check_prompt(self._encode(prompt), self.engine.info)
            first = len(ids)
            ids += self._tokenizer("text").encode(text) if isinstance(text, str) else list(text)
            check_ids(ids, self.engine.info, "text")
            if first == len(ids):
                raise RequestError(f"text: the one of pair {n} is empty; give at least one token", param="text")
            spec = score_spec(
                ids, self.engine.info, id=f"llm-{next(self._ids)}", param="text", first=first, logprobs=top,
                stride=stride, adapter=self.engine.lora_manager.resolve(adapter),
            )  # fmt: skip
            scored.append(Choice(n, spec, IdsOnly()))
        self._finish(scored)
        return [choice.told or [] for choice in scored]

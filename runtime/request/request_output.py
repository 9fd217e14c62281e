"""A finished answer, as ``LLM`` gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.request.output import Choice, TokenLogprob


@dataclass(frozen=True)
class GenerationOutput:
    """A finished answer.

    Attributes:
        text: None with ``skip_tokenizer=True``. token_ids: without end-of-sequence and stop text.
        nfe: denoising steps. finish_reason: stop, length, max_nfe, repetition. eos: it ended at an end-of-sequence id.
        usage: OpenAI's usage object. logprobs: of each token, where `SamplingParams.logprobs` asks for them.
        choices: all `n` answers of the prompt, this one first.
    """

    text: str | None
    token_ids: list[int]
    nfe: int
    finish_reason: str
    eos: bool
    usage: dict[str, Any]
    logprobs: list[TokenLogprob] | None = None
    choices: tuple[GenerationOutput, ...] = ()

    @classmethod
    def of(cls, choice: Choice) -> GenerationOutput:
        """Of a choice that has ended."""
        assert choice.finish_reason is not None
        return cls(
            text=choice.text,
            token_ids=choice.token_ids,
            nfe=choice.nfe,
            finish_reason=choice.finish_reason,
            eos=choice.eos,
            usage=choice.usage(),
            logprobs=choice.told,
        )

    @classmethod
    def of_all(cls, choices: Sequence[Choice]) -> GenerationOutput:
        """The first of a prompt's choices, with all of them."""
        answers = tuple(map(cls.of, choices))
        return replace(answers[0], choices=answers)

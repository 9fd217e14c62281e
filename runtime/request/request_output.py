"""The result of ``LLM.generate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.request.output import CompletionState, TokenLogprob


@dataclass(frozen=True)
class GenerationOutput:
    """A finished output.

    Attributes:
        text: None with ``skip_tokenizer=True``.
        token_ids: without end-of-sequence token and stop text.
        nfe: number of denoising steps.
        finish_reason: stop, length, max_nfe or repetition.
        eos: an end-of-sequence token ended the output.
        usage: the usage object of OpenAI.
        logprobs: one entry per token, if `SamplingParams.logprobs` is set.
        choices: all `n` outputs of the prompt, beginning with this one.
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
    def from_completion(cls, completion: CompletionState) -> GenerationOutput:
        """Creates the output from a finished completion."""
        assert completion.finish_reason is not None
        return cls(
            text=completion.text,
            token_ids=completion.token_ids,
            nfe=completion.nfe,
            finish_reason=completion.finish_reason,
            eos=completion.eos,
            usage=completion.usage(),
            logprobs=completion.token_logprobs,
        )

    @classmethod
    def from_completions(cls, completions: Sequence[CompletionState]) -> GenerationOutput:
        """Creates the outputs of all completions of a prompt, and returns the first."""
        outputs = tuple(map(cls.from_completion, completions))
        return replace(outputs[0], choices=outputs)

"""One answer being put together from the engine's outputs: the same for a server's client and for ``LLM``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from runtime.request.engine_messages import LEAST, EngineOutput, RequestSpec, TokenLogprobs


class AnswerText(Protocol):
    """Turns token ids into text: ``runtime.tokenizer.IncrementalDetokenizer``, or `IdsOnly` without a tokenizer."""

    @property
    def stopped(self) -> bool: ...
    @property
    def stopped_by(self) -> str | None: ...
    @property
    def full(self) -> bool: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def text(self) -> str | None: ...
    def push(self, ids: list[int]) -> str: ...
    def finish(self) -> str: ...
    def tokens_within(self, length: int) -> int: ...


class AnswerParts(Protocol):
    """What tells a text's parts apart: ``runtime.parsers.ChatOutputParser``."""

    @property
    def ended(self) -> bool: ...
    @property
    def called(self) -> bool: ...
    @property
    def reasoning_chars(self) -> int: ...
    def push(self, text: str) -> Sequence[Any]: ...
    def finish(self, cut: bool) -> Sequence[Any]: ...


class IdsOnly:
    """An answer of ids alone (skip_tokenizer)."""

    stopped = False
    stopped_by = None
    full = False
    text = None

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    def push(self, ids: list[int]) -> str:
        self.token_ids.extend(ids)
        return ""

    def finish(self) -> str:
        return ""

    def tokens_within(self, length: int) -> int:
        return 0


class TokenLogprob(NamedTuple):
    """Of a token that stands in an answer or a prompt."""

    id: int
    logprob: float | None  # None: nothing is known of it
    top: list[tuple[int, float]]  # the likeliest in its place, the best first


class Choice:
    """One request's answer so far.

    Attributes:
        finish_reason: None while it goes on. A stop string ends it here, before the engine knows.
        logprobs: of each token that came, where they are asked for; `ending`: of the one that ended it.
        eos: it ended at an end-of-sequence id (counted by tokens per forward, not part of the answer).
        parts: what tells the text's parts apart, where that is wanted. grown: what they grew by, until it is taken.
    """

    __slots__ = (
        "answer",
        "cached_tokens",
        "ending",
        "eos",
        "finish_reason",
        "grown",
        "index",
        "logprobs",
        "nfe",
        "parts",
        "prefill_seconds",
        "queue_seconds",
        "spec",
    )

    def __init__(self, index: int, spec: RequestSpec, answer: AnswerText, parts: AnswerParts | None = None) -> None:
        self.index = index
        self.spec = spec
        self.answer = answer
        self.parts = parts
        self.grown: list[Any] = []
        self.nfe = 0
        self.finish_reason: str | None = None
        self.eos = False
        self.cached_tokens = 0
        self.queue_seconds = 0.0
        self.prefill_seconds = 0.0
        self.logprobs: list[TokenLogprob] = []
        self.ending: TokenLogprob | None = None

    def absorb(self, output: EngineOutput) -> str:
        """Take an output in; the text that became stable with it."""
        self.nfe = output.nfe
        self.cached_tokens = output.cached_tokens or self.cached_tokens
        self.queue_seconds = output.queue_seconds or self.queue_seconds
        self.prefill_seconds = output.prefill_seconds or self.prefill_seconds
        if output.logprobs is not None:
            self._tell(output.new_tokens, output.logprobs)
        text = self.answer.push(output.new_tokens)
        if self.answer.stopped:
            self.finish_reason = "stop"
        elif output.finish_reason is not None or self.answer.full:
            text += self.answer.finish()
            # a stop string may show only once nothing more can come
            self.finish_reason = "stop" if self.answer.stopped else output.finish_reason or "length"
            self.eos = output.eos and not self.answer.stopped
        if self.parts is not None:
            self._part(self.parts, text)
        return text

    def _tell(self, tokens: list[int], told: TokenLogprobs) -> None:
        own = tokens if told.end is None else [*tokens, told.end]
        pairs = (  # there may be fewer tokens than were asked for
            [(id, value) for id, value in zip(*each, strict=True) if value > LEAST]
            for each in zip(told.ids, told.tops, strict=True)
        )
        found = list(map(TokenLogprob, own, told.values, pairs))
        if told.end is not None:
            self.ending = found.pop()
        self.logprobs += found

    @property
    def told(self) -> list[TokenLogprob] | None:
        """`logprobs` of the answer's tokens as it stands; None where they are not asked for."""
        return None if self.spec.logprobs is None else self.logprobs[: len(self.token_ids)]

    def _part(self, parts: AnswerParts, text: str) -> None:
        """The parts of what became stable; they may end the answer before the engine knows."""
        self.grown += parts.push(text)
        if parts.ended:
            self.finish_reason = "stop"
        elif self.finish_reason is not None:
            self.grown += parts.finish(cut=self.finish_reason != "stop")

    def take_grown(self) -> list[Any]:
        """What the parts grew by since this was asked for."""
        grown, self.grown = self.grown, []
        return grown

    @property
    def text(self) -> str | None:
        return self.answer.text

    @property
    def token_ids(self) -> list[int]:
        return self.answer.token_ids

    @property
    def reasoning_tokens(self) -> int:
        return (
            self.answer.tokens_within(self.parts.reasoning_chars)
            if self.parts is not None and self.parts.reasoning_chars
            else 0
        )

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self.answer.stopped_by

    @property
    def openai_reason(self) -> str:
        if self.finish_reason != "stop":
            return "length"
        return "tool_calls" if self.parts is not None and self.parts.called else "stop"

    @property
    def prompt_tokens(self) -> int:
        """With what is given of the answer."""
        return len(self.spec.prompt) + len(self.spec.given)

    @property
    def completion_tokens(self) -> int:
        """Without what is given of the answer."""
        tokens = len(self.token_ids)
        return tokens - sum(offset < tokens for offset in self.spec.given)

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def denoise_fields(output: EngineOutput, text: str) -> dict[str, Any]:
    """Fields of a denoise event (docs/server.md#streaming): ids of the open blocks, masked offsets, new stable text."""
    return {
        "start": output.start,
        "tokens": output.tokens or [],
        "masked": output.masked or [],
        "text": text,
        "nfe": output.nfe,
    }


def denoise_event(choice: Choice, output: EngineOutput, text: str) -> dict[str, Any]:
    """One step of the request, whole."""
    return {"event": "denoise", "id": choice.spec.id, **denoise_fields(output, text)}


def append_event(choice: Choice, output: EngineOutput, text: str) -> dict[str, Any] | None:
    """The newly stable text, when there is any."""
    return {"event": "block_append", "id": choice.spec.id, "text": text, "nfe": output.nfe} if text else None

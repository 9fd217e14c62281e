"""Accumulates the outputs of the engine for one request, for the server and for ``LLM``, and the result of `LLM`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from typing_extensions import TypedDict

from runtime.request.engine_messages import MIN_LOGPROB, EngineOutput, RequestSpec, TokenLogprobs, TokenSteps


class TextBuilder:
    """Collects the ids of an output, without text. ``runtime.tokenizer.IncrementalDetokenizer`` adds the text.

    Attributes:
        stopped_by: the stop string that ended the text.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.stopped_by: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    @property
    def full(self) -> bool:
        """Whether the maximum number of tokens is reached."""
        return False

    @property
    def text(self) -> str | None:
        """The text returned so far."""
        return None

    def push(self, ids: list[int]) -> str:
        """Adds stable ids; returns the text that is now certain."""
        self.token_ids += ids
        return ""

    def finish(self) -> str:
        """Returns the withheld rest of the text, at the end of generation."""
        return ""

    def tokens_within(self, length: int) -> int:
        """Returns how many ids have text that ends within the first `length` characters; there are more characters."""
        return 0


class PartsParser(Protocol):
    """Interface of the parser for reasoning and tool calls: ``runtime.parsers.chat_output.ChatOutputParser``."""

    @property
    def ended(self) -> bool: ...
    @property
    def called(self) -> bool: ...
    @property
    def reasoning_chars(self) -> int: ...
    def push(self, text: str) -> Sequence[Any]: ...
    def finish(self, cut: bool) -> Sequence[Any]: ...


class TokenLogprob(NamedTuple):
    """The logprob of a token of the prompt or the output."""

    id: int
    logprob: float | None  # None: unknown
    top: list[tuple[int, float]]  # the most probable tokens at its position, in descending order


class StepMapFields(TypedDict, total=False):
    """Fields of an output about the steps that wrote its tokens."""

    step_map: list[int]
    last_step_map: list[int]
    block_starts: list[int]


_CUT = (
    "the answer is cut: the shortest one that was found in its format has {} tokens, and it may have {}; allow it "
    "more tokens"
)
_NO_END = "the answer is cut: no short answer was found in its format"
_FORCED = "the model did not end this answer itself, but in its format at a limit: {}"


@dataclass(slots=True, eq=False)
class CompletionState:
    """The output of one request so far.

    Attributes:
        generated, forwards: tokens that the engine has made, and its denoising forwards. Some tokens may follow the end
            of the output, such as those after a stop string.
        finish_reason: None while it continues. A stop string sets it before the engine has finished the request.
        logprobs: of each received token, if requested.
        end_logprob: of the token that ended the output.
        steps: of each received token, if requested.
        forced_end: limit that replaced tokens of the model by those of its format's shortest end; "" if none did.
        eos: an end-of-sequence token ended the output. It counts for tokens per forward, but is not in the output.
        read: result of a read, see `EngineOutput`.
        parts: the parser of reasoning and tool calls, if any.
        deltas: results of the parser since `take_deltas`.
    """

    index: int
    spec: RequestSpec
    answer: TextBuilder
    parts: PartsParser | None = None
    deltas: list[Any] = field(default_factory=list)
    nfe: int = 0
    generated: int = 0
    forwards: int = 0
    finish_reason: str | None = None
    forced_end: str = ""
    eos: bool = False
    read: list[list[float]] | None = None
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end_logprob: TokenLogprob | None = None
    steps: TokenSteps = field(default_factory=TokenSteps)

    def count(self, output: EngineOutput) -> None:
        """Takes the counts of an output, whose tokens may come too late to be added."""
        self.generated, self.forwards = output.generated, output.forwards

    def update(self, output: EngineOutput) -> str:
        """Adds an output of the engine, and returns the new stable text."""
        self.nfe = output.nfe
        self.forced_end = output.forced_end
        self.read = output.read
        self.cached_tokens = output.cached_tokens or self.cached_tokens
        self.queue_seconds = output.queue_seconds or self.queue_seconds
        self.prefill_seconds = output.prefill_seconds or self.prefill_seconds
        if output.logprobs is not None:
            self._add_logprobs(output.new_tokens, output.logprobs)
        if output.steps is not None:
            self._add_steps(output.steps)
        text = self.answer.push(output.new_tokens)
        if self.answer.stopped:
            self.finish_reason = "stop"
        elif output.finish_reason is not None or self.answer.full:
            text += self.answer.finish()
            # some stop strings are found only at the end
            self.finish_reason = "stop" if self.answer.stopped else output.finish_reason or "length"
            self.eos = output.eos and not self.answer.stopped
        if self.parts is not None:
            self._parse_text(self.parts, text)
        return text

    def _add_logprobs(self, tokens: list[int], logprobs: TokenLogprobs) -> None:
        ids = tokens if logprobs.end is None else [*tokens, logprobs.end]
        pairs = (  # there may be fewer tokens than requested
            [(id, value) for id, value in zip(*each, strict=True) if value > MIN_LOGPROB]
            for each in zip(logprobs.ids, logprobs.tops, strict=True)
        )
        found = list(map(TokenLogprob, ids, logprobs.values, pairs))
        if logprobs.end is not None:
            self.end_logprob = found.pop()
        self.logprobs += found

    def _add_steps(self, steps: TokenSteps) -> None:
        self.steps.first += steps.first
        self.steps.ordinals += steps.ordinals
        if steps.last is not None:
            self.steps.last = [*(self.steps.last or ()), *steps.last]

    def step_map_fields(self) -> StepMapFields:
        """Returns the fields of a response about the steps that wrote the tokens of the current output, if requested.

        See docs/research/rollouts.md#step-maps.
        """
        layout, count = self.spec.step_map, len(self.token_ids)
        if layout is None:
            return {}
        found: StepMapFields = {"step_map": self.steps.first[:count]}
        if self.steps.last is not None:
            found["last_step_map"] = self.steps.last[:count]
        found["block_starts"] = layout.output_starts(len(self.spec.prompt), count)
        return found

    @property
    def token_logprobs(self) -> list[TokenLogprob] | None:
        """`logprobs` of the tokens of the current output; None if not requested."""
        return None if self.spec.logprobs is None else self.logprobs[: len(self.token_ids)]

    @property
    def warning(self) -> str:
        """Why structured output is cut, or did not end where the model wanted; "" if neither."""
        spec = self.spec
        if spec.structured is None or not spec.structured.complete or self.finish_reason is None:
            return ""
        if self.forced_end:
            return _FORCED.format(self.forced_end)
        if self.finish_reason == "length" and spec.witness is None:
            return _NO_END
        if self.finish_reason == "length" and spec.witness is not None and len(spec.witness) > spec.max_tokens:
            return _CUT.format(len(spec.witness), spec.max_tokens)
        return ""

    def _parse_text(self, parts: PartsParser, text: str) -> None:
        """Parses new stable text, which may end the output before the engine has finished the request."""
        self.deltas += parts.push(text)
        if parts.ended:
            self.finish_reason = "stop"
        elif self.finish_reason is not None:
            self.deltas += parts.finish(cut=self.finish_reason != "stop")

    def take_deltas(self) -> list[Any]:
        """Returns the results of the parser since the last call."""
        deltas, self.deltas = self.deltas, []
        return deltas

    @property
    def text(self) -> str | None:
        return self.answer.text

    @property
    def token_ids(self) -> list[int]:
        return list(self.answer.token_ids)

    @property
    def reasoning_tokens(self) -> int:
        chars = 0 if self.parts is None else self.parts.reasoning_chars
        return self.answer.tokens_within(chars) if chars else 0

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the output."""
        return self.answer.stopped_by

    @property
    def openai_reason(self) -> Literal["stop", "length", "tool_calls"]:
        if self.finish_reason != "stop":
            return "length"
        return "tool_calls" if self.parts is not None and self.parts.called else "stop"

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt, and of the pinned ones of the output."""
        return len(self.spec.prompt) + len(self.spec.pinned_tokens)

    @property
    def completion_tokens(self) -> int:
        """Number of output tokens without the pinned ones."""
        tokens = len(self.answer.token_ids)
        return tokens - sum(offset < tokens for offset in self.spec.pinned_tokens)

    def usage(self) -> dict[str, Any]:
        """Returns the usage object of OpenAI."""
        return usage([self], [self])


def usage(completions: Sequence[CompletionState], of_prompts: Sequence[CompletionState]) -> dict[str, Any]:
    """Returns the usage object of OpenAI. `of_prompts`: one completion of each prompt, which counts once."""
    prompt = sum(completion.prompt_tokens for completion in of_prompts)
    completed = sum(completion.completion_tokens for completion in completions)
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completed,
        "total_tokens": prompt + completed,
        "prompt_tokens_details": {"cached_tokens": sum(completion.cached_tokens for completion in of_prompts)},
    }
    if any(completion.parts is not None for completion in completions):
        reasoning = sum(completion.reasoning_tokens for completion in completions)
        found["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return found


def denoise_fields(output: EngineOutput, **text: str) -> dict[str, Any]:
    """Returns the fields of a denoise event (docs/guide/streaming.md).

    `text`: the value of the field ``text``, which is omitted if not given.
    """
    tokens, masked = output.tokens or [], output.masked or []
    fields = {"start": output.start, "tokens": tokens, "masked": masked, **text, "nfe": output.nfe}
    if output.candidates is not None:
        fields |= {"candidates": output.candidates, "confidence": output.confidence}
    return fields


def denoise_event(completion: CompletionState, output: EngineOutput, text: str) -> dict[str, Any]:
    """Returns the complete event for one step of the request."""
    return {"event": "denoise", "id": completion.spec.id, **denoise_fields(output, text=text)}


def append_event(completion: CompletionState, output: EngineOutput, text: str) -> dict[str, Any] | None:
    """Returns the event for new stable text, None if there is none."""
    return {"event": "block_append", "id": completion.spec.id, "text": text, "nfe": output.nfe} if text else None


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
        step_map: denoising step, from 1, that first unmasked the position of each token, if
            `SamplingParams.return_step_map` is set.
        last_step_map: step that last changed it, of algorithms that revise tokens.
        block_starts: offset in `token_ids` at which each block begins, with `step_map`.
        choices: all `n` outputs of the prompt, beginning with this one.
        warning: why structured output is cut, or did not end where the model wanted; "" if neither.
    """

    text: str | None
    token_ids: list[int]
    nfe: int
    finish_reason: str
    eos: bool
    usage: dict[str, Any]
    logprobs: list[TokenLogprob] | None = None
    choices: tuple[GenerationOutput, ...] = ()
    warning: str = ""
    step_map: list[int] | None = None
    last_step_map: list[int] | None = None
    block_starts: list[int] | None = None

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
            warning=completion.warning,
            **completion.step_map_fields(),
        )

    @classmethod
    def from_completions(cls, completions: Sequence[CompletionState]) -> GenerationOutput:
        """Creates the outputs of all completions of a prompt, and returns the first."""
        outputs = tuple(map(cls.from_completion, completions))
        return replace(outputs[0], choices=outputs)

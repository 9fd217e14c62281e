"""One answer being put together from the engine's outputs: the same for a server's client and for ``LLM``."""

from __future__ import annotations

from typing import Any, Protocol

from runtime.request.io import EngineOutput, RequestSpec


class AnswerText(Protocol):
    """What turns token ids into text: ``runtime.text.Answer``, or `IdsOnly` without a tokenizer."""

    @property
    def stopped(self) -> bool: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def text(self) -> str | None: ...
    def push(self, ids: list[int]) -> str: ...
    def finish(self) -> str: ...


class IdsOnly:
    """An answer of ids alone (skip_tokenizer)."""

    stopped = False
    text = None

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    def push(self, ids: list[int]) -> str:
        self.token_ids.extend(ids)
        return ""

    def finish(self) -> str:
        return ""


class Choice:
    """One request's answer so far.

    Attributes:
        finish_reason: None while it goes on. A stop string ends it here, before the engine knows.
        eos: it ended at an end-of-sequence id (counted by tokens per forward, not part of the answer).
    """

    __slots__ = ("answer", "cached_tokens", "eos", "finish_reason", "index", "nfe", "queue_seconds", "spec")

    def __init__(self, index: int, spec: RequestSpec, answer: AnswerText) -> None:
        self.index = index
        self.spec = spec
        self.answer = answer
        self.nfe = 0
        self.finish_reason: str | None = None
        self.eos = False
        self.cached_tokens = 0
        self.queue_seconds = 0.0

    def absorb(self, output: EngineOutput) -> str:
        """Take an output in; the text that became stable with it."""
        self.nfe = output.nfe
        self.cached_tokens = output.cached_tokens or self.cached_tokens
        self.queue_seconds = output.queue_seconds or self.queue_seconds
        text = self.answer.push(output.new_tokens)
        if self.answer.stopped:
            self.finish_reason = "stop"
        elif output.finish_reason is not None:
            text += self.answer.finish()
            # a stop string may show only once nothing more can come
            self.finish_reason = "stop" if self.answer.stopped else output.finish_reason
            self.eos = output.eos and not self.answer.stopped
        return text

    @property
    def text(self) -> str | None:
        return self.answer.text

    @property
    def token_ids(self) -> list[int]:
        return self.answer.token_ids

    @property
    def openai_reason(self) -> str:
        return "stop" if self.finish_reason == "stop" else "length"

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        prompt, completion = len(self.spec.prompt), len(self.token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def denoise_fields(output: EngineOutput, text: str) -> dict[str, Any]:
    """The open blocks after a step (runtime.md 3): ids, the mask's where masked, and the text that became stable."""
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

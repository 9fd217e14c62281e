"""Log-probabilities as OpenAI's chat and completions tell them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from runtime.errors import RequestError
from runtime.parsers import part_marks
from runtime.request.engine_messages import RequestSpec
from runtime.request.output import CompletionState, TokenLogprob
from runtime.tokenizer.token_bytes import TokenByteDecoder
from runtime.tokenizer.token_offsets import OffsetTracker, TokenOffset

if TYPE_CHECKING:
    from runtime.server.jobs import Update

MOST = 2**18  # log-probabilities in one answer
STEP = 2**11  # that are made ready before others have their turn

Told = tuple[TokenLogprob, TokenOffset]
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


def check_told(spec: RequestSpec, choices: int, param: str) -> None:
    """Raises RequestError where so many choices may have more log-probabilities to tell than an answer holds."""
    if spec.logprobs is None:
        return
    count = choices * spec.max_tokens * (1 + spec.logprobs)
    if count > MOST:
        raise RequestError(
            f"{param}: the answer may have {count} log-probabilities to tell: {choices} x {spec.max_tokens} tokens x "
            f"{1 + spec.logprobs}; at most {MOST} in one answer: give a smaller max_tokens, n or {param}", param=param,
        )  # fmt: skip


async def in_steps(told: Sequence[T], each: int) -> AsyncIterator[Sequence[T]]:
    """A few at a time, others have their turn in between. `each`: log-probabilities of one."""
    few = max(STEP // each, 1)
    for at in range(0, len(told), few):
        yield told[at : at + few]
        await asyncio.sleep(0)


def ready(told: Any) -> msgspec.Raw:
    """As it is sent, in a fraction of the memory."""
    return msgspec.Raw(_encode(told))


def word(data: bytes) -> str:
    """A token's bytes as text; where they are no whole characters, as ``bytes:\\xe2\\x82``."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class Revealed:
    """Which of an answer's tokens were not told yet though all of their text was."""

    def __init__(self, choice: CompletionState, pieces: TokenByteDecoder) -> None:
        self._choice = choice
        self._pieces = pieces
        self._places: list[TokenOffset] = []
        self._sent = 0

    @cached_property
    def _offsets(self) -> OffsetTracker:  # most requests ask for no log-probabilities
        return OffsetTracker(self._pieces.visible(part_marks()))

    def fresh(self, update: Update | None = None) -> list[Told]:
        """Those, in order, as far as an update's text goes, or all there is. At the end all that the answer has."""
        told, places = self._choice.token_logprobs or [], self._places
        places += self._offsets.push(entry.id for entry in told[len(places) :])
        ended = self._choice.finish_reason is not None if update is None else update.ended
        length = len(self._choice.text or "") if update is None else update.length
        first = last = self._sent
        while last < len(told) and (ended or places[last].end <= length):
            last += 1
        self._sent = last
        return list(zip(told[first:last], places[first:last], strict=True))

    def told(self, update: Update) -> dict[str, Any] | None:
        """`fresh` as chat tells it; None where nobody asks."""
        return None if self._choice.spec.logprobs is None else of_chat(self.fresh(update), self._pieces)

    async def settled(self) -> msgspec.Raw | None:
        """`told` of a long answer, in steps."""
        if self._choice.spec.logprobs is None:
            return None
        content: list[dict[str, Any]] = []
        async for some in in_steps(self.fresh(), 1 + self._choice.spec.logprobs):
            content += of_chat(some, self._pieces)["content"]
        return ready({"content": content, "refusal": None})


def revealed_of(choices: Iterable[CompletionState], pieces: TokenByteDecoder) -> list[Revealed]:
    """One for each."""
    return [Revealed(choice, pieces) for choice in choices]


def of_own(told: Iterable[TokenLogprob], pieces: TokenByteDecoder) -> list[dict[str, Any]]:
    """`logprobs` of the project's own routes: an entry for each of `token_ids`."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        return {"id": token, "token": word(pieces(token)), "logprob": logprob}

    return _entries(told, one)


def ending(choice: CompletionState) -> list[Told]:
    """The token that ended the answer, if it is known: no part of it, and told by completions alone."""
    if choice.end_logprob is None or not choice.eos:
        return []
    length = len(choice.text or "")
    return [(choice.end_logprob, TokenOffset(length, length))]


def of_chat(told: Iterable[Told], pieces: TokenByteDecoder) -> dict[str, Any]:
    """Chat's `logprobs`."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        data = pieces(token)
        return {"token": word(data), "logprob": logprob, "bytes": list(data)}

    return {"content": _entries((entry for entry, _ in told), one), "refusal": None}


def _entries(told: Iterable[TokenLogprob], one: Callable[[int, float | None], dict[str, Any]]) -> list[dict[str, Any]]:
    """Each token as `one` writes it, and with it the likeliest of its place."""
    return [
        {**one(entry.id, entry.logprob), "top_logprobs": [one(token, value) for token, value in entry.top]}
        for entry in told
    ]


def of_completion(told: Iterable[Told], pieces: TokenByteDecoder, base: int = 0) -> dict[str, Any]:
    """Completions' `logprobs`; `base`: characters before the text of these. What is told of a position always holds the
    token that stands there."""
    made: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for entry, place in told:
        top: dict[str, float] | None = None
        if entry.logprob is not None:
            top = {}
            for token, value in (*entry.top, (entry.id, entry.logprob)):
                top.setdefault(word(pieces(token)), value)
        made["tokens"].append(word(pieces(entry.id)))
        made["token_logprobs"].append(entry.logprob)
        made["top_logprobs"].append(top)
        made["text_offset"].append(base + place.start)
    return made

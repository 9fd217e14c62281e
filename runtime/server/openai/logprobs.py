"""Log-probabilities in the forms of chat completions, completions and ``/generate``."""

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
from runtime.tokenizer.detokenizer import OffsetTracker, TokenByteDecoder, TokenOffset

if TYPE_CHECKING:
    from runtime.server.engine_client.generation_job import OutputDelta
    from runtime.server.generate.protocol import OwnLogprob
    from runtime.server.openai.protocol import ChatLogprobs, CompletionLogprobs
    from runtime.server.openai.protocol import TokenLogprob as ChatTokenLogprob


MAX_LOGPROBS = 2**18  # log-probabilities in one answer
LOGPROBS_PER_STEP = 2**11  # encoded before other requests are served

TokenEntry = tuple[TokenLogprob, TokenOffset]
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


def check_logprobs_limit(spec: RequestSpec, choices: int, param: str) -> None:
    """Raises RequestError if the completions may have more log-probabilities than the limit of a response."""
    if spec.logprobs is None:
        return
    count = choices * spec.max_tokens * (1 + spec.logprobs)
    if count > MAX_LOGPROBS:
        raise RequestError(
            f"{param}: the answer may have {count} log-probabilities to tell: {choices} x {spec.max_tokens} tokens x "
            f"{1 + spec.logprobs}; at most {MAX_LOGPROBS} in one answer: give a smaller max_tokens, n or {param}",
            param=param,
        )


async def in_chunks(entries: Sequence[T], each: int) -> AsyncIterator[Sequence[T]]:
    """Yields slices, between which other requests are served. `each`: log-probabilities per entry."""
    few = max(LOGPROBS_PER_STEP // each, 1)
    for at in range(0, len(entries), few):
        yield entries[at : at + few]
        await asyncio.sleep(0)


def encoded(value: Any) -> msgspec.Raw:
    """Encodes a value now, which takes a fraction of its memory."""
    return msgspec.Raw(_encode(value))


def token_text(data: bytes) -> str:
    """Returns the bytes of a token as text; incomplete characters as ``bytes:\\xe2\\x82``."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class LogprobStreamer:
    """Tracks which tokens of a completion still have to be returned with the text that has been returned."""

    def __init__(self, choice: CompletionState, pieces: TokenByteDecoder) -> None:
        self._choice = choice
        self._pieces = pieces
        self._positions: list[TokenOffset] = []
        self._sent = 0

    @cached_property
    def _offsets(self) -> OffsetTracker:  # most requests ask for no log-probabilities
        return OffsetTracker(self._pieces.visible(part_marks()))

    def take_new(self, update: OutputDelta | None = None) -> list[TokenEntry]:
        """Returns new tokens up to the text of `update`, or all new tokens without one."""
        entries, positions = self._choice.token_logprobs or [], self._positions
        positions += self._offsets.push(entry.id for entry in entries[len(positions) :])
        ended = self._choice.finish_reason is not None if update is None else update.ended
        length = len(self._choice.text or "") if update is None else update.length
        first = last = self._sent
        while last < len(entries) and (ended or positions[last].end <= length):
            last += 1
        self._sent = last
        return list(zip(entries[first:last], positions[first:last], strict=True))

    def chat_delta(self, update: OutputDelta) -> ChatLogprobs | None:
        """Returns `take_new` for a chunk of a chat; None if not requested."""
        return None if self._choice.spec.logprobs is None else chat_logprobs(self.take_new(update), self._pieces)

    async def full_chat(self) -> msgspec.Raw | None:
        """Returns the field `logprobs` of the full chat completion, built in chunks; None if not requested."""
        if self._choice.spec.logprobs is None:
            return None
        content: list[ChatTokenLogprob] = []
        async for some in in_chunks(self.take_new(), 1 + self._choice.spec.logprobs):
            content += chat_logprobs(some, self._pieces)["content"]
        return encoded({"content": content, "refusal": None})


def logprob_streamers(choices: Iterable[CompletionState], pieces: TokenByteDecoder) -> list[LogprobStreamer]:
    """One for each."""
    return [LogprobStreamer(choice, pieces) for choice in choices]


def generate_logprobs(entries: Iterable[TokenLogprob], pieces: TokenByteDecoder) -> list[OwnLogprob]:
    """Returns the field `logprobs` of ``/generate``, one entry per token id."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        return {"id": token, "token": token_text(pieces(token)), "logprob": logprob}

    found: list[OwnLogprob] = _entries(entries, one)
    return found


def end_token_entry(choice: CompletionState) -> list[TokenEntry]:
    """Returns the end-of-sequence token, if known. It is not part of the output; only completions return it."""
    if choice.end_logprob is None or not choice.eos:
        return []
    length = len(choice.text or "")
    return [(choice.end_logprob, TokenOffset(length, length))]


def chat_logprobs(entries: Iterable[TokenEntry], pieces: TokenByteDecoder) -> ChatLogprobs:
    """Returns the field `logprobs` of chat completions."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        data = pieces(token)
        return {"token": token_text(data), "logprob": logprob, "bytes": list(data)}

    return {"content": _entries((entry for entry, _ in entries), one), "refusal": None}


def _entries(entries: Iterable[TokenLogprob], one: Callable[[int, float | None], dict[str, Any]]) -> list[Any]:
    """Returns each token in the form of `one`, with the most probable tokens of its position."""
    return [
        {**one(entry.id, entry.logprob), "top_logprobs": [one(token, value) for token, value in entry.top]}
        for entry in entries
    ]


def completion_logprobs(entries: Iterable[TokenEntry], pieces: TokenByteDecoder, base: int = 0) -> CompletionLogprobs:
    """Returns the field `logprobs` of completions. `base`: number of characters before the text of these tokens."""
    made: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    append_logprobs(made, entries, pieces, base)
    return made


def append_logprobs(
    logprobs: CompletionLogprobs, entries: Iterable[TokenEntry], pieces: TokenByteDecoder, base: int
) -> None:
    """Appends tokens to the field `logprobs` of completions. Top tokens always include the token of the position."""
    for entry, offset in entries:
        top: dict[str, float] | None = None
        if entry.logprob is not None:
            top = {}
            for token, value in (*entry.top, (entry.id, entry.logprob)):
                top.setdefault(token_text(pieces(token)), value)
        logprobs["tokens"].append(token_text(pieces(entry.id)))
        logprobs["token_logprobs"].append(entry.logprob)
        logprobs["top_logprobs"].append(top)
        logprobs["text_offset"].append(base + offset.start)

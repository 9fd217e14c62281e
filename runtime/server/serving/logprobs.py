"""Log-probabilities as lists of tokens, and prompts that are echoed with theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from runtime.parsers.formats import part_marks
from runtime.request.engine_messages import EngineInfo, RequestSpec
from runtime.request.output import CompletionState, TextBuilder, TokenLogprob
from runtime.request.resolve import RequestContext, score_spec
from runtime.request.validation import refuse
from runtime.server.serving.job import OutputDelta
from runtime.tokenizer import Tokenizer
from runtime.tokenizer.byte_decoder import OffsetTracker, TokenByteDecoder, TokenOffset

MAX_LOGPROBS = 2**18  # log-probabilities in one answer
LOGPROBS_PER_STEP = 2**11  # encoded before other requests are served

TokenEntry = tuple[TokenLogprob, int]  # with the offset of its text in the text of the response
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


def check_logprobs_limit(spec: RequestSpec, choices: int, param: str) -> None:
    """Raises RequestError if the completions may have more log-probabilities than the limit of a response."""
    assert spec.logprobs is not None
    count = choices * spec.max_tokens * (1 + spec.logprobs)
    if count > MAX_LOGPROBS:
        raise refuse(
            param,
            f"the response may have {count} log-probabilities: {choices} x {spec.max_tokens} tokens x "
            f"{1 + spec.logprobs}; at most {MAX_LOGPROBS} in one answer: give a smaller max_tokens, n or {param}",
        )


async def in_chunks(entries: Sequence[T], each: int) -> AsyncIterator[Sequence[T]]:
    """Yields slices, between which other requests are served. `each`: log-probabilities per entry."""
    few = max(LOGPROBS_PER_STEP // each, 1)
    for at in range(0, len(entries), few):
        yield entries[at : at + few]
        await asyncio.sleep(0)


def token_text(data: bytes) -> str:
    """Returns the bytes of a token as text; incomplete characters as ``bytes:\\xe2\\x82``."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class LogprobStreamer:
    """The log-probabilities of a completion as a list: in full, or with the text that has been returned."""

    def __init__(self, choice: CompletionState, pieces: TokenByteDecoder, echo: PromptEcho | None = None) -> None:
        self._choice, self._pieces, self._echo = choice, pieces, echo
        self._positions: list[TokenOffset] = []
        self._sent = 0

    def empty(self) -> Any:
        """Returns an empty field `logprobs`."""
        return []

    def append(self, field: Any, entries: Iterable[TokenEntry]) -> None:
        """Appends tokens to the field `logprobs`."""
        field += (self._with_top(entry) for entry, _ in entries)

    def entries(self) -> Sequence[TokenEntry]:
        """Returns the tokens of the full response."""
        return self.take_new()

    def delta(self, update: OutputDelta) -> Any:
        """Returns the field `logprobs` of the tokens up to the text of `update`."""
        field = self.empty()
        self.append(field, self.take_new(update))
        return field

    async def full(self) -> msgspec.Raw:
        """Returns the field `logprobs` of the full response, built in chunks."""
        field = self.empty()
        async for some in in_chunks(self.entries(), 1 + (self._choice.spec.logprobs or 0)):
            self.append(field, some)
        return msgspec.Raw(_encode(field))  # encoded now, which takes a fraction of its memory

    @cached_property
    def _offsets(self) -> OffsetTracker:
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
        return [(entry, at.start) for entry, at in zip(entries[first:last], positions[first:last], strict=True)]

    def _with_top(self, entry: TokenLogprob) -> dict[str, Any]:
        """Returns a token in the form of `_token`, with the most probable tokens of its position."""
        top = [self._token(token, value) for token, value in entry.top]
        return {**self._token(entry.id, entry.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        data = self._pieces(token)
        return {"token": token_text(data), "logprob": logprob, "bytes": list(data)}


class PromptEcho:
    """The echoed prompts of one request.

    Attributes:
        silent: only prompts are returned, no completions.
        scores: scoring requests, by the index of their prompt. A prompt of one token has none. Empty without
            log-probabilities.
        texts: texts of the prompts.
    """

    def __init__(
        self, prompts: Sequence[str | list[int]], *, silent: bool, stride: int = 1, parse_special: bool = False
    ) -> None:
        """`silent`: return only prompts. `stride`: tokens of a prompt that are scored per forward.

        `parse_special`: special tokens in the text of prompts were read as such.
        """
        self._prompts = prompts
        self.silent = silent
        self._stride = stride
        self._parse_special = parse_special
        self._choices_per_prompt = 1  # answers to a prompt
        self.scores: dict[int, CompletionState] = {}
        self._bos: str | None = None
        self.texts: list[str] = []

    def attach(self, choices: Sequence[CompletionState], each: int, info: EngineInfo, tokenizer: Tokenizer) -> None:
        """Prepares scoring requests. `each`: completions per prompt. Raises RequestError if scoring is impossible."""
        self._choices_per_prompt, self._pieces = each, tokenizer.byte_decoder
        self._bos = None if info.bos_token_id is None else tokenizer.decode([info.bos_token_id])
        count = sum(len(choice.spec.prompt) * (1 + (choice.spec.logprobs or 0)) for choice in choices)
        if choices[0].spec.logprobs is not None and count > MAX_LOGPROBS:
            raise refuse(
                "echo",
                f"the prompts have {count} log-probabilities, n and logprobs counted in; at most {MAX_LOGPROBS} in one "
                "answer: send fewer prompts, or a smaller n or logprobs",
            )
        for number, choice in enumerate(choices[::each]):
            prompt, spec = self._prompts[number], choice.spec
            self.texts.append(prompt if isinstance(prompt, str) else tokenizer.decode(prompt))
            if spec.logprobs is not None and len(spec.prompt) > 1:
                context = RequestContext(
                    id=f"{spec.id}-prompt", parent_id=spec.parent_id, tenant=spec.tenant, adapter=spec.adapter
                )
                scored = score_spec(
                    spec.prompt, info, context, param="echo", logprobs=spec.logprobs, tokens_per_step=self._stride,
                    cache_salt=spec.cache_salt,
                )  # fmt: skip
                scored = msgspec.structs.replace(scored, counts_prompt=self.silent)
                self.scores[number] = CompletionState(number, scored, TextBuilder())
        if self.silent:
            for choice in choices:
                choice.finish_reason = "length"

    def text(self, choice: CompletionState) -> str:
        """Returns the text of the prompt of a completion."""
        return self.texts[choice.index // self._choices_per_prompt]

    def _adds_bos(self, prompt: str | list[int]) -> bool:
        if self._bos is None or not isinstance(prompt, str):
            return False
        return not (self._parse_special and prompt.startswith(self._bos))

    def entries(self, choice: CompletionState) -> list[TokenEntry]:
        """Returns the scored tokens of the prompt of a completion; the first token has no log-probability."""
        number = choice.index // self._choices_per_prompt
        ids, scored = choice.spec.prompt, self.scores.get(number)
        known: list[TokenLogprob] = [] if scored is None else scored.token_logprobs or []
        before = int(self._adds_bos(self._prompts[number]))  # not part of the text
        offsets = [0] * before + [offset.start for offset in OffsetTracker(self._pieces).push(ids[before:])]
        return list(zip([TokenLogprob(ids[0], None, []), *known], offsets, strict=True))

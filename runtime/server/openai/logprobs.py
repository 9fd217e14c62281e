"""Log-probabilities in the forms of chat completions, completions and ``/generate``; and prompts that are echoed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from runtime.parsers import part_marks
from runtime.request.engine_messages import EngineInfo, RequestSpec
from runtime.request.output import CompletionState, IdsOnly, TokenLogprob
from runtime.request.resolve import score_spec
from runtime.request.validation import refuse
from runtime.tokenizer import Tokenizer
from runtime.tokenizer.detokenizer import OffsetTracker, TokenByteDecoder, TokenOffset

if TYPE_CHECKING:
    from runtime.server.engine_client.generation_job import OutputDelta
    from runtime.server.generate.protocol import OwnLogprob
    from runtime.server.openai.protocol import ChatLogprobs, CompletionLogprobs, CompletionRequest
    from runtime.server.openai.protocol import TokenLogprob as ChatTokenLogprob


MAX_LOGPROBS = 2**18  # log-probabilities in one answer
LOGPROBS_PER_STEP = 2**11  # encoded before other requests are served

TokenEntry = tuple[TokenLogprob, TokenOffset]
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

    def chat_delta(self, update: OutputDelta) -> ChatLogprobs:
        """Returns `take_new` for a chunk of a chat."""
        return chat_logprobs(self.take_new(update), self._pieces)

    async def full_chat(self) -> msgspec.Raw:
        """Returns the field `logprobs` of the full chat completion, built in chunks."""
        content: list[ChatTokenLogprob] = []
        async for some in in_chunks(self.take_new(), 1 + (self._choice.spec.logprobs or 0)):
            content += chat_logprobs(some, self._pieces)["content"]
        return encoded({"content": content, "refusal": None})


def logprob_streamers(choices: Iterable[CompletionState], pieces: TokenByteDecoder) -> list[LogprobStreamer]:
    """Returns a streamer per completion."""
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


def parse_echo(body: CompletionRequest, prompts: Sequence[str | list[int]]) -> PromptEcho | None:
    """Returns the echo, None if not requested. Raises RequestError for fields that conflict with it or require it."""
    scores = bool(body.echo) and body.set_fields().get("logprobs") is not None
    if body.prompt_logprobs_stride is not None and not scores:
        name = "prompt_logprobs_stride"
        raise refuse(name, "only with echo true and logprobs; leave it out")
    if not body.echo:
        return None
    if body.suffix:
        raise refuse("echo", "does not go with a suffix; leave one of them out")
    if scores and body.stream:
        raise refuse("echo", "cannot be combined with logprobs and stream; leave one of them out")
    return PromptEcho(prompts, silent=body.max_tokens == 0, stride=body.prompt_logprobs_stride or 1)


class PromptEcho:
    """The echoed prompts of one request.

    Attributes:
        silent: only prompts are returned, no completions.
        scores: scoring requests, one per prompt of several tokens.
        texts: texts of the prompts.
    """

    def __init__(self, prompts: Sequence[str | list[int]], *, silent: bool, stride: int = 1) -> None:
        """`silent`: return only prompts. `stride`: tokens of a prompt that are scored per forward."""
        self._prompts = prompts
        self.silent = silent
        self._stride = stride
        self._choices_per_prompt = 1  # answers to a prompt
        self._scored: dict[int, CompletionState] = {}
        self._ids: list[list[int]] = []
        self._adds_bos = False
        self.texts: list[str] = []

    def attach(self, choices: Sequence[CompletionState], each: int, info: EngineInfo, tokenizer: Tokenizer) -> None:
        """Prepares scoring requests. `each`: completions per prompt. Raises RequestError if scoring is impossible."""
        self._choices_per_prompt, self._pieces = each, tokenizer.byte_decoder
        self._adds_bos = info.bos_token_id is not None
        count = sum(len(choice.spec.prompt) * (1 + (choice.spec.logprobs or 0)) for choice in choices)
        if choices[0].spec.logprobs is not None and count > MAX_LOGPROBS:
            raise refuse(
                "echo",
                f"the prompts have {count} log-probabilities, n and logprobs counted in; at most {MAX_LOGPROBS} in one "
                "answer: send fewer prompts, or a smaller n or logprobs",
            )
        for number, choice in enumerate(choices[::each]):
            prompt, spec = self._prompts[number], choice.spec
            self._ids.append(spec.prompt)
            self.texts.append(prompt if isinstance(prompt, str) else tokenizer.decode(prompt))
            if spec.logprobs is not None and len(spec.prompt) > 1:
                scored = score_spec(
                    spec.prompt, info, id=f"{spec.id}-prompt", param="echo", logprobs=spec.logprobs,
                    tokens_per_step=self._stride, cache_salt=spec.cache_salt, parent_id=spec.parent_id,
                    tenant=spec.tenant, adapter=spec.adapter,
                )  # fmt: skip
                self._scored[number] = CompletionState(number, scored, IdsOnly())
        if self.silent:
            for choice in choices:
                choice.finish_reason = "length"

    @property
    def scores(self) -> list[CompletionState]:
        return list(self._scored.values())

    def text(self, choice: CompletionState) -> str:
        """Returns the text of the prompt of a completion."""
        return self.texts[choice.index // self._choices_per_prompt]

    def entries(self, choice: CompletionState) -> list[tuple[TokenLogprob, TokenOffset]]:
        """Returns the scored tokens of the prompt of a completion; the first token has no log-probability."""
        number = choice.index // self._choices_per_prompt
        ids = self._ids[number]
        scored = self._scored.get(number)
        known: list[TokenLogprob] = [] if scored is None else scored.token_logprobs or []
        before = int(self._adds_bos and isinstance(self._prompts[number], str))  # not part of the text
        offsets = [TokenOffset(0, 0)] * before + OffsetTracker(self._pieces).push(ids[before:])
        return list(zip([TokenLogprob(ids[0], None, []), *known], offsets, strict=True))

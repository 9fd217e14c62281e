"""State of a request: its tokens, the state of each position, its open blocks, and its KV pages."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.algorithms.base import LogitStat, UnmaskingAlgorithm, get_algorithm, resolve_params
from runtime.kernels.next_segments import NO_BLOCK
from runtime.scheduling.logits_processors import LogitsProcessorState
from runtime.scheduling.step_map import StepMap
from runtime.scheduling.step_plan import (
    FIXED,
    MASKED,
    REMASKED,
    UNMASKED,
    BlockNumbers,
    Ints,
    Ints32,
    LogprobsOf,
    SoftTokens,
    StateWrite,
)

if TYPE_CHECKING:
    from runtime.request.engine_messages import FinishReason, RequestSpec
    from runtime.scheduling.tool_name_matcher import ToolNameMatcher
    from runtime.structured_output.grammar_matcher import GrammarMatcher

# Replaces a top_p of 0. The most probable token of any vocabulary has a higher probability, so only it is allowed.
LEAST_TOP_P = 1e-6
MIN_LOGPROB = -9999.0  # as in ``request.engine_messages``, whose dependencies may be missing here


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"  # prefilling or decoding, see `Request.prefilling`
    RELEASED = "released"  # finished, aborted or failed: it holds no pages


@dataclass(slots=True)
class AlgorithmMemory:
    """What an algorithm keeps of a block of `B` positions from step to step, also during a preemption.

    Attributes:
        remasked: bool [B], positions that were masked again.
        history: float64 [B, records, fields], values that it recorded (``UnmaskingAlgorithm.history_fields``).
        soft_tokens: tokens of the soft embeddings of UNMASKED positions.
    """

    remasked: npt.NDArray[np.bool_] | None = None
    history: npt.NDArray[np.float64] | None = None
    soft_tokens: SoftTokens | None = None


class Block:
    """An open block of a request.

    `tokens` and `state` are views of the request's arrays. A finished block is final when all earlier blocks
    are finished. It then leaves `Request.blocks`, and `Request.num_final_tokens` moves past it.

    Attributes:
        start: absolute position of the first token.
        logits_start: position of the row whose logits belong to the first token.
        masks: number of MASKED positions.
        same_token_ratio: see docs/research/decoding-rules.md.
        first_masked: offset of the first MASKED position, `size` if there is none.
        first_eos: offset of the first UNMASKED end-of-sequence id, `size` if there is none.
        has_eos: an UNMASKED token of the block ends the output.
        steps: denoising steps of the block.
        num_skipped: leading positions without logits in the next step; none of them is MASKED.
        finished: the steps of the block no longer change its tokens.
        num_fixed: number of FIXED positions.
        num_generated: tokens of the output that the last step of the block left UNMASKED, before its first EOS.
    """

    def __init__(self, request: Request, start: int, end: int, *, shift_by: int = 0) -> None:
        """Opens the positions ``[start, end)``, of which none is UNMASKED.

        Args:
            shift_by: the logits of a position are those of the row `shift_by` positions before it.
        """
        size = end - start
        self.tokens = request.tokens[start:end]
        self.state = request.state[start:end]
        content = self.state.tobytes()  # for a few positions ten times faster than numpy
        masks = content.count(MASKED)
        self.start = start
        self.size = size
        self.logits_start = start - shift_by
        self.masks = masks
        self.numbers = BlockNumbers(initial_masks=masks)
        self.same_token_ratio = 0.0 if masks and request.algorithm.edits else 1.0
        self.first_masked = content.index(MASKED) if masks else size
        self.first_eos = size
        self.has_eos = False
        self.steps = 0
        self.num_skipped = 0
        self.finished = masks == 0
        self.num_fixed = content.count(FIXED)
        self.num_generated = size - masks - self.num_fixed
        self.memory = AlgorithmMemory()

    @property
    def progress(self) -> float:
        """The fraction of its positions that are UNMASKED (docs/research/decoding-rules.md#opening-blocks)."""
        masks = self.numbers.initial_masks
        return (masks - self.masks) / masks if masks else 1.0


@dataclass(frozen=True, slots=True)
class KVSpan:
    """Positions of open blocks, from position `start` on, with the ids `tokens` [n] that a step forwarded at them."""

    start: int
    tokens: npt.NDArray[np.int64]


@dataclass(slots=True)
class CachedKV:
    """The K/V of a request in the cache.

    Attributes:
        cache_salt: see ``RequestSpec``; it depends on the adapter too.
        reused_spans: rows of open blocks whose K/V later steps read without forwarding them, in order.
        recompute_spans: after a preemption, the `reused_spans` that are not recomputed yet.
        page_groups: ids of its page groups.
        num_allocated_tokens: their tokens.
        num_cached_page_groups: leading page groups that are in the prefix cache.
        page_group_hashes: hashes of leading page groups with final content, whether they are allocated or not.
        cached_tokens: prompt tokens found in the prefix cache. None: it has not run yet.
        preempted: whether it was preempted.
    """

    cache_salt: str
    reused_spans: list[KVSpan] = field(default_factory=list)
    recompute_spans: list[KVSpan] = field(default_factory=list)
    page_groups: list[int] = field(default_factory=list)
    num_allocated_tokens: int = 0
    num_cached_page_groups: int = 0
    page_group_hashes: list[bytes] = field(default_factory=list)
    cached_tokens: int | None = None
    preempted: bool = False

    def reset(self) -> None:
        """Forgets the pages after a preemption."""
        self.preempted = True
        self.recompute_spans = list(self.reused_spans)
        self.page_groups = []
        self.num_allocated_tokens = self.num_cached_page_groups = 0


class OutputProgress:
    """How much of the output of a request is known.

    Attributes:
        num_stable_tokens: positions below it are final text.
        num_sent_tokens: positions below it were returned to the client.
        num_generated: tokens that steps have made, final or not. It never decreases: tokens that are masked again, or
            that follow the end of the answer when it is found, stay counted.
        num_forwards: denoising forwards. It exceeds `Request.nfe` if a preemption restarted blocks.
        hit_eos: an end-of-sequence id or a stop token, which is not part of the output, ended it.
        eos_generated: some block had `has_eos` at some step.
        last_step_event: first position, token ids and masked offsets of the last denoise event.
        logprobs, candidates, step_map: those of its positions. None: the request does not return them.
        read: result of a read, see `EngineOutput`. None: not known yet, or the request is none.
    """

    __slots__ = (
        "candidates", "eos_generated", "hit_eos", "last_step_event", "logprobs", "num_forwards", "num_generated",
        "num_sent_tokens", "num_stable_tokens", "read", "repetition_run", "step_map",
    )  # fmt: skip

    def __init__(self, prompt_len: int) -> None:
        self.num_stable_tokens = self.num_sent_tokens = prompt_len
        self.num_generated = self.num_forwards = 0
        self.hit_eos = self.eos_generated = False
        self.last_step_event: tuple[int, list[int], list[int]] = (0, [], [])
        self.repetition_run = RepetitionRun(prompt_len)
        self.logprobs: LogprobTable | None = None
        self.candidates: LogprobTable | None = None
        self.step_map: StepMap | None = None
        self.read: list[list[float]] | None = None


@dataclass(slots=True)
class RequestTimes:
    """Times of a request, seconds.

    Attributes:
        arrival: ``time.perf_counter()``.
        queue_seconds, prefill_seconds: durations. None: not known yet.
    """

    arrival: float = field(default_factory=time.perf_counter)
    queue_seconds: float | None = None
    prefill_seconds: float | None = None


class Request:
    """One request in the engine.

    `tokens` and `state` cover the prompt and the output up to the end of its last block. MASKED positions hold the mask
    id. Tokens below `num_final_tokens` are final: those of the prompt and of leading finished blocks. K/V below
    `num_computed_tokens` is in the cache. The engine forwards the tokens between the two before or with the
    open `blocks`.

    Args:
        size: positions of `tokens` and `state`.
        num_final_tokens: number of tokens that are final from the start.
        arrival_index: number of earlier requests of the engine.
        get_algorithm: returns an unmasking algorithm by its key.
        eos_ids: end-of-sequence ids of the model.

    Attributes:
        end: first position after the output.
        prefill_len: tokens to prefill: the prompt, or after a preemption all final tokens.
        next_start: position where the next block opens.
        nfe: number of denoising steps.
        blocks_opened: the blocks of this step are open (docs/research/decoding-rules.md#opening-blocks).
        last_served_step: number of the last engine step with this request.
        last_scheduled: result of the last scheduling of its open blocks, reset on preemption.
        finish_reason: why the output ended. None: it has not ended, or the request failed or was aborted.
        constraint: grammar matcher of structured output; it has accepted all UNMASKED tokens. With `tool_names`, those
            since the start marker of the call whose name is incomplete; None elsewhere.
        mask_id: token of MASKED positions.
        tool_names: constrains the names of tool calls; None: it does not, or the grammar of the output does.
        lora_slot: slot of its adapter on the device while it runs, else -1.
        req_slot: row of the page table and slot in the runner while it runs, else -1.
        pending_writes: ranges of positions whose content the runner does not have yet.
        resolved, params: parameters of the algorithm, and those of sampling with them, float64 [columns].
    """

    def __init__(
        self, spec: RequestSpec, *, size: int, num_final_tokens: int, mask_id: int, arrival_index: int,
        get_algorithm: Callable[[str], UnmaskingAlgorithm] = get_algorithm, eos_ids: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.spec = spec
        self.arrival_index = arrival_index
        self.status = Status.WAITING
        self.mask_id = mask_id
        self.end = self.prompt_len + spec.max_tokens
        self.tokens, self.state = initial_content(spec, size, mask_id)
        self.num_computed_tokens = 0
        self.num_final_tokens = self.prefill_len = self.next_start = num_final_tokens
        self.blocks: list[Block] = []
        self.nfe = 0
        self.blocks_opened = False
        self.last_served_step = -1
        self.last_scheduled: ScheduledRequest | None = None
        self.finish_reason: FinishReason | None = None
        self.output = OutputProgress(self.prompt_len)
        self.algorithm = get_algorithm(spec.decoding.algorithm)
        self.resolved = resolve_params(self.algorithm, tuple(self.values.items()))
        sampling = (spec.temperature, max(spec.top_p, LEAST_TOP_P), spec.top_k, spec.min_p)
        self.params = np.array([*sampling, *self.resolved.param_row], dtype=np.float64)
        self.logits_processors = (
            None if spec.logits_processors is None else LogitsProcessorState(spec, spec.logits_processors, eos_ids)
        )
        if spec.logprobs is not None:
            self.output.logprobs = LogprobTable(size, spec.logprobs)
        if spec.stream_candidates:
            self.output.candidates = LogprobTable(size, spec.stream_candidates)
        if spec.step_map is not None:
            self.output.step_map = StepMap(
                size, self.prompt_len, spec.step_map, revises=self.resolved.may_revise,
                uniform_noise=self.algorithm.uniform_noise,
            )  # fmt: skip
        self.constraint: GrammarMatcher | None = None
        self.tool_names: ToolNameMatcher | None = None
        self.lora_slot = -1
        self.req_slot = -1
        self.pending_writes: list[tuple[int, int]] = []
        self.kv = CachedKV(spec.cache_salt)
        self.times = RequestTimes()

    @property
    def prompt_len(self) -> int:
        return len(self.spec.prompt)

    @property
    def values(self) -> dict[str, Any]:
        """Values of the decoding fields, by name."""
        return self.spec.decoding.values

    @property
    def decodes_left_to_right(self) -> bool:
        """Whether no algorithm fills its masks, and one block at a time is open.

        A grammar or forced tokens fill them from left to right, and a read fills none.
        """
        return self.constraint is not None or bool(self.spec.forced_token_ids or self.spec.read_ids)

    @property
    def prefilling(self) -> bool:
        return self.num_computed_tokens < self.prefill_len

    @property
    def finished(self) -> bool:
        """Whether the output is complete. K/V of its last blocks may still be computed, for the prefix cache only."""
        return self.finish_reason is not None

    @property
    def forced_end(self) -> str:
        """Limit that replaced tokens of the model by those of the grammar's witness; "" if none did."""
        return self.constraint.end.reason if self.constraint is not None and self.constraint.end is not None else ""

    def output_by_position(self) -> npt.NDArray[np.int64]:
        """Returns the id at each position of the output, pinned ones included; -1 where it is MASKED."""
        here = slice(self.prompt_len, self.end)
        output: npt.NDArray[np.int64] = np.where(self.state[here] == MASKED, -1, self.tokens[here])
        return output

    def count_generated(self) -> int:
        """Returns the tokens of the output that steps have made so far: those before the open blocks, and in them."""
        if self.spec.forced_token_ids or self.spec.read_ids:
            return 0  # they are those of the request, or none
        blocks = self.blocks
        end = blocks[0].start if blocks else self.end if self.finished else self.next_start
        end = max(min(end, self.end), self.prompt_len)
        count = end - self.prompt_len
        if self.spec.pinned_tokens:
            count -= sum(self.prompt_len + offset < end for offset in self.spec.pinned_tokens)
        for block in blocks:
            count += block.num_generated
            if block.has_eos:
                break
        return count

    def first_stop_offset(self, block: Block, first_eos: int) -> int:
        """Returns the offset of the first UNMASKED token that ends the output, the size of the block if there is none.

        Args:
            first_eos: offset of the first end-of-sequence id.
        """
        at = block.size if self.spec.ignore_eos else first_eos
        if self.spec.stop_ids:
            found = np.flatnonzero(np.isin(block.tokens, self.spec.stop_ids) & (block.state == UNMASKED))
            at = min(at, int(found[0])) if len(found) else at
        return at

    def take_writes(self) -> list[StateWrite]:
        """Returns the content of `pending_writes`, which the runner stores. A request without a slot has none."""
        writes: list[StateWrite] = []
        if not self.pending_writes or self.req_slot < 0:
            return writes
        spans, self.pending_writes = self.pending_writes, []
        for start, end in spans:
            states = self.state[start:end]
            for block in self.blocks:
                if block.memory.remasked is not None and start <= block.start < end:
                    at = block.start - start
                    states = states.copy()
                    states[at : at + block.size] |= block.memory.remasked * np.int8(REMASKED)
            writes.append(StateWrite(self.req_slot, start, self.tokens[start:end], states))
        return writes

    def record_step_event(self, start: int) -> None:
        """Stores the denoise event of a step: first position, ids and masked offsets of the blocks from `start` on."""
        here = slice(start, self.next_start)
        masked = np.flatnonzero(self.state[here] == MASKED).tolist()
        self.output.last_step_event = start, self.tokens[here].tolist(), masked

    def masked_output(self, block: Block) -> list[int]:
        """Returns the offsets of the positions of a block that are MASKED and in the output."""
        first = max(self.prompt_len - block.start, 0)
        here = block.state[first : self.end - block.start]
        return (np.flatnonzero(here == MASKED) + first).tolist()

    def finish_read(self, logprobs: list[list[float]]) -> None:
        """Finishes a read without output. Its open block is never final, so no K/V of it is reused."""
        self.output.read, self.nfe = logprobs, self.nfe + 1
        self.finish_reason, self.end, self.blocks = "stop", self.prompt_len, []
        self.num_final_tokens = self.num_computed_tokens

    def reset_kv(self) -> None:
        """Resets the state of the KV cache after a preemption; decoded tokens stay, and their K/V is recomputed.

        With self-conditioning, the state of open blocks is lost with the device slot. They start again with the same
        random numbers.
        """
        if self.resolved.required_stats & LogitStat.SELF_CONDITIONING:
            self.nfe -= sum(block.steps for block in self.blocks)
            self.blocks = []
            self.next_start = self.num_final_tokens
            if self.output.step_map is not None:
                self.output.step_map.restart(self.next_start)
        self.num_computed_tokens = 0
        self.prefill_len = self.num_final_tokens
        self.kv.reset()


def draws_of(request: Request, start: int) -> tuple[int, int, int]:
    """Returns the row of a block at position `start` in ``DenoiseBlocks.draws``."""
    seed = request.spec.seed
    return seed - (seed >> 63 << 64), request.nfe, start  # the bits of uint64 as int64


def initial_content(spec: RequestSpec, size: int, mask_id: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    """Returns the tokens and states of a new request: its prompt, pinned tokens, and masks."""
    prompt_len = len(spec.prompt)
    tokens = np.full(size, mask_id, dtype=np.int64)
    tokens[:prompt_len] = spec.prompt
    state = np.full(size, MASKED, dtype=np.int8)
    state[:prompt_len] = FIXED
    for offset, token in spec.pinned_tokens.items():
        tokens[prompt_len + offset], state[prompt_len + offset] = token, FIXED
    return tokens, state


class RepetitionRun:
    """Finds runs of equal tokens in a growing prefix for max_repetition_run; scans each position once."""

    __slots__ = ("length", "position", "token")

    def __init__(self, position: int) -> None:
        self.position = position
        self.token = -1
        self.length = 0

    def advance(self, tokens: npt.NDArray[np.int64], end: int, limit: int) -> int | None:
        """Scans ``tokens[position:end]``. Returns the position after the run's last token; None if there is no run."""
        for token in tokens[self.position : end].tolist():
            self.position += 1
            self.length = self.length + 1 if token == self.token else 1
            self.token = token
            if self.length >= limit:
                return self.position
        return None

    def copy(self) -> RepetitionRun:
        other = RepetitionRun(self.position)
        other.token, other.length = self.token, self.length
        return other


@dataclass(slots=True, eq=False)
class ForwardSpan:
    """Positions ``[start, end)`` of the open blocks that a step forwards, and the blocks to sample.

    The strategy sets `must_advance` of each of these blocks: whether the algorithm must unmask a position even if none
    passes its threshold. ``Strategy.update`` counts such steps in `num_steps`. A span without blocks only
    writes K/V: it is no denoising step and has no output.
    """

    start: int
    end: int
    blocks: list[Block]


class NextForward(NamedTuple):
    """Positions ``[start, end)`` that the next step of a request forwards, and its `num_final_tokens` there."""

    start: int
    end: int
    num_final_tokens: int


class Successors(NamedTuple):
    """What the next step forwards if the sampled block continues, and if it is final now. None: it is not known.

    An end of the output is neither, and so is the end of a block at the end of the output. With several sampled blocks,
    the first one decides.

    Attributes:
        opens_at: with at most so many masks in the last sampled block, neither is right, as another block may open.
    """

    if_continuing: NextForward | None = None
    if_final: NextForward | None = None
    opens_at: int = -1

    @property
    def known(self) -> list[NextForward]:
        return [each for each in (self.if_continuing, self.if_final) if each is not None]


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """Positions ``[start, end)`` of a request that a step forwards.

    While the layout of a request is stable, all steps use the same object, and what is derived from it is reused too.

    Attributes:
        span: the part in open blocks. None: all rows are final tokens, or they are recomputed.
        recompute: rows of open blocks to recompute after a preemption, with the ids that they had.
        blocks: blocks to sample.
        is_denoise_step: whether this is a denoising step of the request.
        successors: what the next step forwards. None: not computed yet, or pages are missing.
        segment: its rows, int32 [columns] (``kernels.segments.Segment``).
        outcomes: its row of ``NextStep.outcomes``, int32 [columns].
    """

    request: Request
    start: int
    end: int
    span: ForwardSpan | None
    recompute: KVSpan | None = None
    blocks: list[Block] = field(init=False)
    is_denoise_step: bool = field(init=False)
    successors: Successors | None = None
    segment: Ints32 | None = None
    outcomes: Ints32 | None = None

    def __post_init__(self) -> None:
        span = self.span
        self.blocks = [] if span is None else span.blocks
        self.is_denoise_step = span is not None and span.start < span.end and bool(span.blocks)

    @property
    def is_last_step(self) -> bool:
        """Whether the request ends with this step, by `max_nfe`."""
        limit = self.request.spec.max_nfe
        return limit is not None and self.is_denoise_step and self.request.nfe + 1 >= limit

    def tokens(self) -> Ints:
        """Returns the current tokens of the rows, [rows], or those of `recompute`."""
        return self.request.tokens[self.start : self.end] if self.recompute is None else self.recompute.tokens


class Following(NamedTuple):
    """A request of the next step, before the results of this one.

    Attributes:
        scheduled: its rows in this step, of which `successors` follow, or without a block those in the next step.
        block: index of its block among those that this step samples. NO_BLOCK: none.
    """

    scheduled: ScheduledRequest
    block: int = NO_BLOCK


class LogprobTable:
    """Stores the logprobs of one request by position: `values` [size], `top_ids` and `top_values` [size, num_top].

    Those of the last step may still be on the device.
    """

    __slots__ = ("_pending", "num_top", "top_ids", "top_values", "values")

    def __init__(self, size: int, num_top: int) -> None:
        self.num_top = num_top
        self.values = np.full(size, MIN_LOGPROB)
        self.top_ids = np.zeros((size, num_top), dtype=np.int64)
        self.top_values = np.full((size, num_top), MIN_LOGPROB)
        self._pending: list[tuple[int, LogprobsOf, int]] = []  # arguments of `add`

    def add(self, start: int, logprobs: LogprobsOf, i: int) -> None:
        """Adds the logprobs of a step for its block `i`, which begins at position `start`."""
        if self._pending and self._pending[0][1] is not logprobs:  # of an earlier step, which the device has completed
            self._read()
        self._pending.append((start, logprobs, i))

    def _read(self) -> None:
        for start, logprobs_of, i in self._pending:
            found = logprobs_of(i)
            if found is not None:
                at = start + found.offsets
                self.values[at] = np.maximum(found.values, MIN_LOGPROB)
                self.top_ids[at] = found.top_ids[:, : self.num_top]
                self.top_values[at] = np.maximum(found.top_values[:, : self.num_top], MIN_LOGPROB)
        self._pending = []

    def between(self, start: int, end: int) -> tuple[list[float], list[list[int]], list[list[float]]]:
        """Returns values, top ids and top values of the positions ``[start, end)``. Waits for the device."""
        self._read()
        here = slice(start, end)
        return self.values[here].tolist(), self.top_ids[here].tolist(), self.top_values[here].tolist()

    def clear(self, start: int, end: int) -> None:
        """Forgets the most probable tokens of the positions ``[start, end)``."""
        self.top_values[start:end] = MIN_LOGPROB

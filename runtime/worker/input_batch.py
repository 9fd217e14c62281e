"""Builds the inputs of a step: the arrays of a StepPlan, and from them the arrays that the device reads.

The shapes of these arrays depend only on the descriptors of the step. All decisions that depend on its content become
index arrays here: which positions are sampled, and which rows belong to which block. So the device launches the same
kernels for all steps with the same descriptors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from runtime.algorithms.base import (
    MIN_P,
    TEMPERATURE,
    TOKEN_MERGE_TOP_K,
    TOP_K,
    TOP_P,
    LogitStat,
    SoftEmbeddingParams,
    UnmaskingAlgorithm,
)
from runtime.kernels.forward_batch import MAX_TILE_ROWS
from runtime.kernels.next_segments import ENDS, NO_BLOCK, OUTCOMES, UNKNOWN, BlockEnd
from runtime.kernels.segments import (
    CONDITIONED,
    COUNT,
    FIELDS,
    FIRST_TOKEN,
    NO_LIMIT,
    SLOT,
    START,
    Segment,
    first_rows,
    visible_end_of,
)
from runtime.scheduling.kv_cache_manager import PageTable
from runtime.scheduling.lora_manager import LoRAManager
from runtime.scheduling.request import Block, Following, NextForward, Request, ScheduledRequest, draws_of
from runtime.scheduling.step_plan import (
    BLOCK_NUMBERS,
    MASKED,
    MUST_ADVANCE,
    NO_LOGPROBS,
    UNMASKED,
    AlgorithmBatch,
    BlockRead,
    DenoiseBlocks,
    ForcedTokens,
    GrammarBlock,
    Ints,
    Ints32,
    SoftEmbeddingRows,
    StepPlan,
    TableWrites,
)
from runtime.scheduling.strategy import Strategy
from runtime.worker.host_buffers import Arrays
from runtime.worker.logits_processors import logits_processor_arrays, make_logits_processor_batch
from runtime.worker.next_step import NextStep
from runtime.worker.request_states import RequestStates

SELF_CONDITIONING = LogitStat.SELF_CONDITIONING.value  # as an integer, since operations on flags are slow
UNKNOWN_FORWARD = NextForward(0, UNKNOWN, 0)  # so its segment has this count


@dataclass(frozen=True)
class ForwardDescriptor:
    """Everything on which the launches of a forward depend.

    Attributes:
        pages: pages that the rows of any request see.
        tile_rows, reach: see ForwardBatch; upper bounds in a CUDA graph.
        soft_embedding_shape: number of rows with soft embeddings, and tokens per row.
        self_conditioned: some block has the self-conditioning of its last step.
        active_lora_modules: ``ForwardBatch.active_lora_modules``.
    """

    rows: int
    tiles: int
    segments: int
    pages: int
    tile_rows: int
    reach: int
    soft_embedding_shape: tuple[int, int] = (0, 0)
    self_conditioned: bool = False
    active_lora_modules: int = 0


@dataclass(frozen=True)
class AlgorithmDescriptor:
    """The part of a step that uses one unmasking algorithm.

    Attributes:
        required_stats: a ``LogitStat`` mask.
        blocks: number of blocks.
        rows: number of sampled positions.
        num_random: rows at the end that have a temperature; the others are greedy.
        num_filtered: of these, rows at the end under min-p, top-k or top-p.
        history_len: records per position (``BlockBatch.history``).
        top_k: maximum number of tokens in a soft embedding (``algorithms.base.BlockUpdate.soft_tokens``).
    """

    algorithm: UnmaskingAlgorithm
    required_stats: int
    blocks: int
    rows: int
    num_random: int = 0
    num_filtered: int = 0
    history_len: int = 0
    top_k: int = 0


@dataclass(frozen=True)
class SampleDescriptor:
    """Everything on which the launches of sampling depend: `blocks` of `size` positions, in groups."""

    blocks: int
    size: int
    groups: tuple[AlgorithmDescriptor, ...]
    uniform_noise: bool = False
    self_conditioned: bool = False
    has_logits_processors: bool = False  # such a step is not captured
    rows: int = field(init=False)
    num_random: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", sum([group.rows for group in self.groups]))
        object.__setattr__(self, "num_random", sum([group.num_random for group in self.groups]))


def forward_inputs(plan: StepPlan, *, page_size: int) -> tuple[ForwardDescriptor, Arrays]:
    """Returns the descriptor and the input arrays of a forward that runs eagerly."""
    segments = plan.segments.copy()
    shape = forward_descriptor(plan)
    last = segments[:, START].astype(np.int64) + segments[:, COUNT] - 1
    arrays = forward_arrays(plan)
    arrays["segments"] = segments
    if plan.tokens is not None:
        arrays["tokens"] = plan.tokens.astype(np.int32)
        segments[:, FIRST_TOKEN] = first_rows(segments)
    if plan.page_table is not None:
        arrays["page_table"] = plan.page_table
    pages = -(-int(visible_end_of(segments, last).max()) // page_size)
    return replace(shape, pages=pages, reach=int(last.max()) + 1), arrays


def forward_descriptor(plan: StepPlan) -> ForwardDescriptor:
    """Returns the descriptor of a forward without `pages` and `reach`, which no captured forward needs."""
    counts = plan.segments[:, COUNT].tolist()
    tile_rows = min(max(counts), MAX_TILE_ROWS)
    soft = plan.soft_embeddings
    return ForwardDescriptor(
        rows=sum(counts),
        tiles=sum([-(-count // tile_rows) for count in counts]),
        segments=len(counts),
        pages=0,
        tile_rows=tile_rows,
        reach=0,
        soft_embedding_shape=(0, 0) if soft is None else soft.ids.shape,
        self_conditioned=bool(plan.segments[:, CONDITIONED].any()),
        active_lora_modules=plan.active_lora_modules,
    )


def forward_arrays(plan: StepPlan) -> Arrays:
    """Returns the input arrays of a forward that any padding keeps."""
    arrays: Arrays = {"segments": plan.segments}
    if plan.soft_embeddings is not None:
        arrays |= {f"soft_embedding_{name}": array for name, array in vars(plan.soft_embeddings).items()}
    return arrays


def sample_inputs(blocks: DenoiseBlocks, states: RequestStates) -> tuple[SampleDescriptor, Arrays]:
    """Returns the descriptor and the input arrays of sampling. `states` has the content of the blocks.

    Sampled positions are ordered by group; within a group, greedy rows precede those with a temperature. The array
    `num_valid` holds the number of rows up to the last one that is not padding.
    """
    block, at = np.nonzero(blocks.sampled)
    several = len(blocks.groups) > 1
    kind, block, at = _sort_by_group(blocks, block, at)
    counts = np.bincount(kind, minlength=3 * len(blocks.groups)).reshape(-1, 3)
    arrays: Arrays = {
        "rows": blocks.rows[block] + at,
        "block": block,
        "at": at,
        "num_valid": np.array([len(at)], dtype=np.int32),
        "block_first": states.entries(blocks.req_slot, blocks.start),
        "block_size": blocks.size,
        "numbers": blocks.numbers,
    }
    if several:
        block_in_group = np.empty(len(blocks.rows), dtype=np.int64)  # index of each block in its group
        for group in blocks.groups:
            block_in_group[group.members] = np.arange(len(group.members))
        arrays["block_in_group"] = block_in_group[block]
    if blocks.draws is not None:
        arrays["draws"] = blocks.draws
    if blocks.self_conditioned:
        arrays["req_slot"] = blocks.req_slot
    if blocks.logits_processors is not None:
        arrays |= logits_processor_arrays(blocks.logits_processors)
    if blocks.sampling_params is not None:
        arrays["sampling_params"] = blocks.sampling_params[block[np.flatnonzero(kind % 3)]]
    for i, group in enumerate(blocks.groups):
        arrays[f"params{i}"] = group.params
        if several:
            arrays[f"members{i}"] = group.members
        if group.history is not None:
            arrays[f"history{i}"] = group.history
    shape = SampleDescriptor(
        blocks=len(blocks.rows),
        size=blocks.state.shape[1],
        groups=tuple(map(_algorithm_descriptor, blocks.groups, counts.tolist())),
        uniform_noise=blocks.uniform_noise,
        self_conditioned=blocks.self_conditioned,
        has_logits_processors=blocks.logits_processors is not None,
    )
    return shape, arrays


def _algorithm_descriptor(group: AlgorithmBatch, counts: list[int]) -> AlgorithmDescriptor:
    """Returns the descriptor of a group with so many greedy, random and filtered random rows."""
    algorithm, (num_greedy, num_unfiltered, num_filtered) = group.algorithm, counts
    top_k = 0
    if group.required_stats & LogitStat.TOP_K and TOKEN_MERGE_TOP_K.name in algorithm.columns:
        top_k = int(group.params[:, algorithm.columns[TOKEN_MERGE_TOP_K.name]].max())
    return AlgorithmDescriptor(
        algorithm=algorithm,
        required_stats=group.required_stats,
        blocks=len(group.members),
        rows=num_greedy + num_unfiltered + num_filtered,
        num_random=num_unfiltered + num_filtered,
        num_filtered=num_filtered,
        history_len=0 if group.history is None else group.history.shape[2],
        top_k=top_k,
    )


def _sort_by_group(blocks: DenoiseBlocks, block: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Sorts the sampled positions by group and kind of sampling.

    Returns:
        The code of each position, its block, and its offset in the block. The code is the number of the group times 3,
        plus the kind: 0 for greedy rows, 1 for random rows, 2 for random rows under min-p, top-k or top-p.
    """
    kind = np.zeros(len(block), dtype=np.int64)
    params = blocks.sampling_params
    if params is not None:
        random = params[:, TEMPERATURE] > 0
        filtered = random & ((params[:, TOP_K] > 0) | (params[:, TOP_P] < 1) | (params[:, MIN_P] > 0))
        kind = np.where(blocks.state[block, at] == MASKED, (random.astype(np.int64) + filtered)[block], 0)
    if len(blocks.groups) > 1:
        number = np.empty(len(blocks.rows), dtype=np.int64)
        for i, group in enumerate(blocks.groups):
            number[group.members] = i
        kind += 3 * number[block]
    elif params is None:
        return kind, block, at
    order = kind.argsort(kind="stable")
    return kind[order], block[order], at[order]


class BatchBlocks:
    """What does not change about the sampled blocks of a step while its scheduled requests are the same.

    Args:
        batch: the scheduled requests.
        offsets: one per scheduled request; the row of a position is the position plus the offset.

    Attributes:
        blocks, owners: the blocks, and the request of each.
        columns: int64 [4, n], `rows`, `req_slot`, `start` and `size` of `DenoiseBlocks`.
        groups: the blocks by unmasking algorithm, without history.
    """

    def __init__(self, batch: list[ScheduledRequest], offsets: list[int]) -> None:
        self.blocks = [block for scheduled in batch for block in scheduled.blocks]
        self.owners = [scheduled.request for scheduled in batch for _ in scheduled.blocks]
        numbers: list[int] = []  # flat, as an array of tuples takes three times as long
        for scheduled, offset in zip(batch, offsets, strict=True):
            for block in scheduled.blocks:
                numbers += block.logits_start + offset, scheduled.request.req_slot, block.start, block.size
        self.columns = np.array(numbers, dtype=np.int64).reshape(-1, 4).T.copy()
        self.groups = _groups(self.owners)


@dataclass(frozen=True)
class BatchRows:
    """The rows of a step, and what follows from them. They are the same while its scheduled requests are.

    Attributes:
        segments: those of `StepPlan`.
        offsets: see `BatchBlocks`.
        soft: whether a request uses soft embeddings.
    """

    batch: list[ScheduledRequest]
    segments: Ints32
    offsets: list[int]
    sampled: BatchBlocks
    soft: bool

    def is_of(self, batch: list[ScheduledRequest], launched: Ints32 | None) -> bool:
        """Returns whether a step has these rows. Its forward may have been launched with segments of its own."""
        same = launched is None or launched is self.segments
        return same and len(batch) == len(self.segments) and batch == self.batch


class InputBuilder:
    """Builds step plans."""

    def __init__(self, table: PageTable, strategy: Strategy, lora_manager: LoRAManager | None = None) -> None:
        self.table = table
        self.lora_manager = lora_manager or LoRAManager()
        self.strategy = strategy
        self._rows = self._rows_of([], None)
        self._prepared: NextStep | None = None  # the last result of `prepare`

    def plan(self, batch: list[ScheduledRequest], launched: Ints32 | None = None) -> StepPlan:
        """Returns the plan of a step without its blocks.

        Args:
            launched: segments of a forward that was launched for the step. If they are right, the plan has them, even
                if some requests have ended meanwhile.
        """
        if not self._rows.is_of(batch, launched):
            self._rows = self._rows_of(batch, launched)
        rows = self._rows
        earlier = any(scheduled.recompute is not None for scheduled in batch)  # ids of an earlier step
        return StepPlan(
            segments=rows.segments,
            tokens=np.concatenate([scheduled.tokens() for scheduled in batch]) if earlier else None,
            active_lora_modules=self._active_lora_modules(each.request for each in batch),
            soft_embeddings=soft_embedding_rows(batch, rows.offsets) if rows.soft else None,
            **self.take_writes([scheduled.request for scheduled in batch])._asdict(),
        )

    def _rows_of(self, batch: list[ScheduledRequest], launched: Ints32 | None) -> BatchRows:
        segments = _stack([self._segment_of(each) for each in batch], FIELDS)
        requests = [scheduled.request for scheduled in batch]
        slots = segments[:, SLOT].tolist()
        if launched is not None:
            own = set(slots)
            of_batch = [slot in own for slot in launched[:, SLOT].tolist()]
            segments = launched if np.array_equal(launched[of_batch], segments) else segments
        first = (first_rows(segments) - segments[:, START]).tolist()
        offset_of = dict(zip(segments[:, SLOT].tolist(), first, strict=True))
        offsets = [offset_of[slot] for slot in slots]
        return BatchRows(
            batch=batch,
            segments=segments,
            offsets=offsets,
            sampled=BatchBlocks(batch, offsets),
            soft=any(request.resolved.soft_embedding_params is not None for request in requests),
        )

    def take_writes(self, requests: list[Request]) -> TableWrites:
        """Returns the content and the pages of the requests that the runner does not have yet."""
        writes = tuple(write for request in requests for write in request.take_writes())
        return TableWrites(writes, self.table.take_writes(request.req_slot for request in requests))

    def prepare(self, batch: list[Following], max_rows: int, *, may_leave: bool) -> NextStep:
        """Returns the outcomes of a step.

        Args:
            max_rows, may_leave: see ``kernels.next_segments.Offer``.
        """
        modules = self._active_lora_modules(each.scheduled.request for each in batch)
        last = self._prepared
        if (
            last is not None
            and last.batch == batch
            and last.active_lora_modules == modules
            and all(each.scheduled.outcomes is not None for each in batch)
        ):
            return replace(last, max_rows=max_rows, may_leave=may_leave)
        outcomes = _stack([self._outcomes_of(each) for each in batch], OUTCOMES)
        outcomes[:, 0] = [each.block for each in batch]
        if_continuing = outcomes[:, ENDS : ENDS + FIELDS]
        if np.array_equal(if_continuing, self._rows.segments):
            if_continuing = self._rows.segments  # so that `plan` and the runner see that it is the same
        continues = None
        if (if_continuing[:, COUNT] != UNKNOWN).all():
            continues = StepPlan(np.ascontiguousarray(if_continuing), active_lora_modules=modules)
        self._prepared = NextStep(
            batch=batch,
            outcomes=outcomes,
            if_all_continue=continues,
            active_lora_modules=modules,
            max_rows=max_rows,
            may_leave=may_leave,
        )
        return self._prepared

    def _segment_of(self, scheduled: ScheduledRequest) -> Ints32:
        if scheduled.segment is None:
            request = scheduled.request
            forward = NextForward(scheduled.start, scheduled.end, request.num_final_tokens)
            later = any(block.numbers.num_steps for block in scheduled.blocks)
            scheduled.segment = np.array(self._segment(request, forward, later=later), dtype=np.int32)
        return scheduled.segment

    def _outcomes_of(self, following: Following) -> Ints32:
        scheduled = following.scheduled
        if following.block == NO_BLOCK:
            segment = self._segment_of(scheduled)
            return np.concatenate([np.array([NO_BLOCK] * ENDS, np.int32), segment, segment])
        if scheduled.outcomes is None:
            scheduled.outcomes = np.array(self._outcomes(scheduled), dtype=np.int32)
        return scheduled.outcomes

    def _outcomes(self, scheduled: ScheduledRequest) -> tuple[int, ...]:
        request, block, successors = scheduled.request, scheduled.blocks[0], scheduled.successors
        assert successors is not None
        end = BlockEnd(
            block=0,  # `prepare` sets it
            size=block.size,
            without_masks=not (request.algorithm.edits or self.strategy.uniform_noise),
            at_eos=not request.spec.ignore_eos,
            output_end=request.end - block.start,
            is_revised=request.resolved.may_revise,
            newest=len(scheduled.blocks) - 1,
            opens_at=successors.opens_at,
        )
        continues, final = (each or UNKNOWN_FORWARD for each in successors[:2])
        return end + self._segment(request, continues, later=True) + self._segment(request, final)

    def _segment(self, request: Request, forward: NextForward, *, later: bool = False) -> Segment:
        """Returns a segment. `later`: its block was sampled before."""
        start, end, num_final = forward
        return Segment(
            request.req_slot, start, end - start, *self.strategy.visible_keys(request, num_final),
            window_end=num_final if self.strategy.shared_window else NO_LIMIT, editable_start=num_final,
            lora_slot=request.lora_slot,
            conditioned=self.strategy.block_layout.size if later and _is_conditioned(request) else 0,
        )  # fmt: skip

    def _active_lora_modules(self, requests: Iterable[Request]) -> int:
        return self.lora_manager.affected_modules({request.spec.adapter for request in requests})

    def blocks(self) -> DenoiseBlocks | None:
        """Returns the blocks of the last plan, in the order of the scheduled requests; None if there are none."""
        return _plan_blocks(self._rows.sampled)

    def split(self, blocks: DenoiseBlocks, batch: list[ScheduledRequest]) -> DenoiseBlocks:
        """Returns the blocks of the last plan with `per_request`."""
        parts = [
            _plan_blocks(BatchBlocks([one], [offset])) for one, offset in zip(batch, self._rows.offsets, strict=True)
        ]
        return replace(blocks, per_request=tuple(part for part in parts if part is not None))


def _is_conditioned(request: Request) -> bool:
    return request.resolved.required_stats & SELF_CONDITIONING > 0


def _plan_blocks(batch: BatchBlocks) -> DenoiseBlocks | None:
    """Returns the blocks to sample; None if there are none."""
    blocks, owners = batch.blocks, batch.owners
    if not blocks:
        return None
    n = len(blocks)
    rows, req_slot, start, block_size = batch.columns
    size = max([block.size for block in blocks])
    flat: list[int] = []
    for block in blocks:
        flat += numbers_of(block.numbers)
    numbers = np.array(flat, dtype=np.int64).reshape(n, -1)
    state = _pad_and_stack([block.state for block in blocks], size)
    sampled = _sampled_positions(owners, blocks, state)
    led = [i for i, request in enumerate(owners) if request.decodes_left_to_right]
    sampled[led] = numbers[led, MUST_ADVANCE] = False  # the algorithm leaves these blocks unchanged
    groups = batch.groups
    if any(group.algorithm.history_fields for group in groups):
        groups = tuple(replace(group, history=_history(group, blocks, size)) for group in groups)
    shaped = any(request.logits_processors is not None for request in owners)
    num_logprobs, num_candidates = requested_logprobs(owners), requested_candidates(owners)
    reads_logits = num_logprobs is not None or num_candidates is not None
    sampling_params = _sampling_params(groups, n)
    noisy = any(group.algorithm.uniform_noise for group in groups)
    return DenoiseBlocks(
        rows=rows,
        req_slot=req_slot,
        start=start,
        size=block_size,
        state=state,
        sampled=sampled,
        numbers=numbers,
        sampling_params=sampling_params,
        groups=groups,
        draws=_draws(owners, blocks) if noisy or sampling_params is not None else None,
        uniform_noise=noisy,
        self_conditioned=any(group.required_stats & LogitStat.SELF_CONDITIONING for group in groups),
        logits_processors=make_logits_processor_batch(owners, blocks, size) if shaped else None,
        grammar_blocks=grammar_blocks(owners, blocks) if led else (),
        forced_tokens=forced_blocks(owners, blocks) if led else (),
        reads=read_blocks(owners, blocks) if led else (),
        num_logprobs=num_logprobs,
        processed_logprobs=processed_logprobs(owners),
        num_candidates=num_candidates,
        tokens=_pad_and_stack([block.tokens for block in blocks], size) if reads_logits else None,
    )


def _sampled_positions(owners: list[Request], blocks: list[Block], state: np.ndarray) -> np.ndarray:
    """Returns the positions whose logits the algorithms need, bool [n, B].

    Args:
        state: [n, B].
    """
    sampled: np.ndarray = state == MASKED
    revises = [request.resolved.may_revise for request in owners]
    if any(revises):
        sampled |= (state == UNMASKED) & np.array(revises)[:, None]
        for i, block in enumerate(blocks):
            sampled[i, : block.num_skipped] = False
    return sampled


numbers_of = operator.attrgetter(*BLOCK_NUMBERS)


def _pad_and_stack(parts: list[np.ndarray], size: int) -> np.ndarray:
    """Returns [len(parts), size]; shorter parts are padded with zeros (FIXED, for states)."""
    joined = _concat(parts)
    if len(joined) < len(parts) * size:
        joined = _concat([np.pad(part, (0, size - len(part))) for part in parts])
    return joined.reshape(len(parts), size)


def _concat(parts: list[np.ndarray]) -> np.ndarray:
    """Does the same as ``np.concatenate`` for contiguous arrays of one dtype, in a third of the time."""
    return np.frombuffer(bytearray().join(cast("list[bytearray]", parts)), dtype=parts[0].dtype)  # arrays are buffers


def _stack(rows: list[Ints32], columns: int) -> Ints32:
    """Returns the rows, int32 [columns] each, as one array."""
    return _concat(rows).reshape(-1, columns) if rows else np.empty((0, columns), np.int32)


def _history(group: AlgorithmBatch, blocks: list[Block], size: int) -> np.ndarray | None:
    """Returns the history [m, size, records, fields] of a group's blocks, with a zero record for the next step."""
    rule, members = group.algorithm, [blocks[i] for i in group.members]
    if not rule.history_fields:
        return None
    records = [0 if block.memory.history is None else block.memory.history.shape[1] for block in members]
    history = np.zeros((len(members), size, 1 if rule.static_history else max(records) + 1, len(rule.history_fields)))
    for record, block, n in zip(history, members, records, strict=True):
        if n:
            record[: block.size, :n] = block.memory.history
    return history


def _groups(owners: list[Request]) -> tuple[AlgorithmBatch, ...]:
    """Groups blocks by the unmasking algorithm of their requests."""
    members: dict[UnmaskingAlgorithm, list[int]] = {}
    for i, request in enumerate(owners):
        members.setdefault(request.algorithm, []).append(i)
    return tuple(
        AlgorithmBatch(
            rule,
            np.array(mine, dtype=np.int64),
            _concat([owners[i].params for i in mine]).reshape(len(mine), -1),
            functools.reduce(operator.or_, [owners[i].resolved.required_stats for i in mine]),
        )
        for rule, mine in members.items()
    )


def _sampling_params(groups: tuple[AlgorithmBatch, ...], n: int) -> np.ndarray | None:
    """Returns `DenoiseBlocks.sampling_params` of `n` blocks."""
    if not any(group.params[:, TEMPERATURE].any() for group in groups):
        return None
    params = np.empty((n, MIN_P + 1))
    for group in groups:
        params[group.members] = group.params[:, : params.shape[1]]
        if group.algorithm.uniform_noise:  # the algorithm applies the temperature
            params[group.members, TEMPERATURE] = np.sign(group.params[:, TEMPERATURE])
    return params


def _draws(owners: list[Request], blocks: list[Block]) -> np.ndarray:
    return np.array([draws_of(*each) for each in zip(owners, (b.start for b in blocks), strict=True)], dtype=np.int64)


def soft_embedding_rows(batch: list[ScheduledRequest], offsets: list[int]) -> SoftEmbeddingRows | None:
    """Returns the UNMASKED positions of open blocks with soft tokens; None if there are none.

    Args:
        offsets: see `BatchBlocks`.
    """
    ids: list[np.ndarray] = []
    probs: list[np.ndarray] = []
    states: list[np.ndarray] = []
    starts: list[int] = []
    how: list[SoftEmbeddingParams] = []
    for scheduled, offset in zip(batch, offsets, strict=True):
        request = scheduled.request
        if request.resolved.soft_embedding_params is None or scheduled.span is None:
            continue
        for block in request.blocks:
            if block.memory.soft_tokens is not None:
                ids.append(block.memory.soft_tokens[0])
                probs.append(block.memory.soft_tokens[1])
                states.append(block.state)
                starts.append(block.start + offset)
                how.append(request.resolved.soft_embedding_params)
    if not starts:
        return None
    filled = np.flatnonzero(np.concatenate(states) == UNMASKED)
    if not len(filled):
        return None
    sizes = [len(state) for state in states]
    rows = [start + np.arange(size) for start, size in zip(starts, sizes, strict=True)]
    count = max([each.shape[1] for each in ids])
    return SoftEmbeddingRows(
        rows=np.concatenate(rows)[filled],
        ids=_pad_columns(ids, count)[filled],
        probs=_pad_columns(probs, count)[filled],
        params=np.array(how, dtype=np.float64).repeat(sizes, axis=0)[filled],
    )


def _pad_columns(parts: list[np.ndarray], count: int) -> np.ndarray:
    """Concatenates the parts to [rows, count]; narrower ones are padded with zeros."""
    return np.concatenate(
        [part if part.shape[1] == count else np.pad(part, ((0, 0), (0, count - part.shape[1]))) for part in parts]
    )


def grammar_blocks(owners: Sequence[Request], blocks: Sequence[Block]) -> tuple[GrammarBlock, ...]:
    """Returns the first block with a mask of each request with structured output.

    Args:
        owners: request of each block.
        blocks: blocks of the step.
    """
    found = []
    for i, request, block in _first_masked(owners, blocks):
        if request.constraint is not None:
            threshold = float(request.values["accept_threshold"])
            num_left = request.end - block.start - block.first_masked
            found.append(GrammarBlock(i, block.first_masked, block.size, num_left, threshold, request.constraint))
    return tuple(found)


def forced_blocks(owners: Sequence[Request], blocks: Sequence[Block]) -> tuple[ForcedTokens, ...]:
    """Returns the first block with a mask of each request with forced tokens, and the next of these tokens."""
    found = []
    for i, request, block in _first_masked(owners, blocks):
        text = request.spec.forced_token_ids
        if text:
            start = block.start + block.first_masked - request.prompt_len
            count = min(request.spec.forced_tokens_per_step, block.size - block.first_masked)
            found.append(ForcedTokens(i, block.first_masked, tuple(text[start : start + count])))
    return tuple(found)


def read_blocks(owners: Sequence[Request], blocks: Sequence[Block]) -> tuple[BlockRead, ...]:
    """Returns the blocks of reads, each with its masks in the output."""
    return tuple(
        BlockRead(i, request.masked_output(block), request.spec.read_ids)
        for i, request, block in _first_masked(owners, blocks)
        if request.spec.read_ids
    )


def _first_masked(owners: Sequence[Request], blocks: Sequence[Block]) -> Iterator[tuple[int, Request, Block]]:
    """Yields index, request and block of each request's first block with a mask, if no algorithm fills it."""
    seen = set()
    for i, (request, block) in enumerate(zip(owners, blocks, strict=True)):
        if request.decodes_left_to_right and block.masks and request.arrival_index not in seen:
            seen.add(request.arrival_index)
            yield i, request, block


def requested_logprobs(owners: Sequence[Request]) -> np.ndarray | None:
    """Returns the number of top logprobs per block, int64 [n], or NO_LOGPROBS; None if no request has any."""
    if not any(request.spec.logprobs is not None for request in owners):
        return None
    return np.array(
        [NO_LOGPROBS if request.spec.logprobs is None else request.spec.logprobs for request in owners], dtype=np.int64
    )


def processed_logprobs(owners: Sequence[Request]) -> np.ndarray | None:
    """Returns ``DenoiseBlocks.processed_logprobs``."""
    found = [request.spec.logprobs is not None and request.spec.processed_logprobs for request in owners]
    return np.array(found) if any(found) else None


def requested_candidates(owners: Sequence[Request]) -> np.ndarray | None:
    """Returns ``DenoiseBlocks.num_candidates``."""
    counts = [request.spec.stream_candidates for request in owners]
    return np.array(counts, dtype=np.int64) if any(counts) else None

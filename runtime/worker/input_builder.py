"""Turns into the arrays of a StepPlan: one indexing for the whole batch wherever there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from runtime.algorithms.base import MIN_P, TEMPERATURE, LogitStat, UnmaskingAlgorithm, get_algorithm
from runtime.algorithms.rng import DRAW, RENOISE, uniforms
from runtime.engine.lora_manager import Adapters
from runtime.engine.page_table import PageTable
from runtime.engine.request import MASKED, UNMASKED, Block, Request
from runtime.engine.scheduled_request import ScheduledRequest
from runtime.engine.step_plan import (
    AlgorithmBatch,
    Bools,
    DenoiseBlocks,
    Ints,
    Ints32,
    SamplingInputs,
    StepPlan,
    make_row_layout,
)
from runtime.strategies.base import Strategy
from runtime.worker.input_embeds import self_conditioning_rows, soft_embedding_rows
from runtime.worker.sample.forced_tokens import recitals, walks
from runtime.worker.sample.logits_processors import make_logits_processor_batch
from runtime.worker.sample.logprobs import asked


@dataclass(frozen=True)
class Geometry:
    """Where a step's rows stand: all of its forward but the ids. Shared between steps: not to be written to."""

    facts: list[int]  # all that it depends on

    positions: Ints
    slots: Ints
    visible_end: Ints32
    window_origin: Ints
    open: Bools
    tiles: Ints32
    page_table: Ints32
    adapters: Ints32 | None
    offsets: list[int]  # of each turn, what has to be added to a position to get its row
    merges: bool  # whether rows may be made of several tokens
    conditions: bool  # whether rows may be told of their blocks' last steps


class Planner:
    """Makes plans of turns. A batch that only denoises stands where it stood in the step before: its geometry is made
    anew only when something of it has changed, and looked at only when some turn or page has."""

    def __init__(self, table: PageTable, strategy: Strategy, adapters: Adapters | None = None) -> None:
        self.table = table
        self.adapters = adapters or Adapters()
        self.strategy = strategy
        self._known: Geometry | None = None
        self._turns: list[ScheduledRequest] = []  # whose it is

    def plan(
        self,
        batch: list[ScheduledRequest],
        ready: Callable[[], object] = lambda: None,
        begin_next: Callable[[], bool] = bool,
    ) -> StepPlan:
        """The step's plan; the blocks of the turns that have a feed are in it in the turns' order. `ready`: brings the
        blocks to their present state; until they are asked for only the requests' tokens have to be. `begin_next`: see
        StepPlan."""
        geometry = self._known
        if geometry is None or geometry.facts[0] != self.table.version or self._turns != batch:
            facts = self._facts(batch)
            if geometry is None or geometry.facts != facts:
                self._known = self._geometry(batch, facts)
            self._turns = batch
        return self.again(batch, ready, begin_next)

    def again(
        self, batch: list[ScheduledRequest], ready: Callable[[], object], begin_next: Callable[[], bool]
    ) -> StepPlan:
        """The same turns' next plan, wherever their requests may be by now."""
        geometry = self._known
        assert geometry is not None

        def sampled() -> DenoiseBlocks | None:
            ready()
            return _plan_blocks(batch, geometry.offsets)

        return StepPlan(
            tokens=_end_to_end([scheduled.tokens for scheduled in batch]),
            positions=geometry.positions,
            slots=geometry.slots,
            visible_end=geometry.visible_end,
            window_origin=geometry.window_origin,
            is_editable=geometry.open,
            tiles=geometry.tiles,
            page_table=geometry.page_table,
            make_blocks=sampled,
            make_blocks_per_request=lambda: _apart(batch, geometry.offsets),
            try_launch_next=begin_next,
            soft_embeddings=soft_embedding_rows(batch, geometry.offsets) if geometry.merges else None,
            self_conditioning=self_conditioning_rows(batch, geometry.offsets) if geometry.conditions else None,
            lora_slots=geometry.adapters,
            active_lora_modules=geometry.facts[1],
        )

    def _facts(self, batch: list[ScheduledRequest]) -> list[int]:
        facts = [self.table.version, self.adapters.touched({scheduled.request.adapter for scheduled in batch})]
        for scheduled in batch:
            request, first = scheduled.request, scheduled.first
            facts += (
                first,
                scheduled.last - first,
                request.num_final_tokens,
                request.req_slot,
                request.end,
                request.arrival_index,
                request.lora_slot,
            )
        return facts

    def _geometry(self, batch: list[ScheduledRequest], facts: list[int]) -> Geometry:
        first, counts, settled, row, _, _, slot = np.array(facts[2:], dtype=np.int64).reshape(len(batch), -1).T
        layout = make_row_layout(tuple(counts.tolist()))
        owner, positions = layout.request_index, layout.positions(first)
        visible_end = self.strategy.visible_end([scheduled.request for scheduled in batch], owner, positions)
        boundary = settled[owner]
        page_size = self.table.page_size
        pages = self.table.rows(row, int(visible_end.max()))
        page = positions // page_size
        at = pages.ravel().take(owner * pages.shape[1] + page).astype(np.int64)
        return Geometry(
            facts=facts,
            positions=positions,
            slots=positions + (at - page) * page_size,
            visible_end=visible_end.astype(np.int32),
            window_origin=np.minimum(positions, boundary) if self.strategy.shared_window else positions,
            open=positions >= boundary,
            tiles=layout.tiles,
            page_table=pages,
            adapters=slot[owner].astype(np.int32) if facts[1] else None,
            offsets=(layout.first_rows - first).tolist(),
            merges=any(scheduled.request.soft_embedding_params is not None for scheduled in batch),
            conditions=any(scheduled.request.required_stats & LogitStat.SELF_CONDITIONING for scheduled in batch),
        )


def _plan_blocks(batch: list[ScheduledRequest], offsets: list[int]) -> DenoiseBlocks | None:
    """`offsets`: of each turn, what has to be added to a position to get its row."""
    blocks: list[Block] = []
    owners: list[Request] = []
    numbers: list[int] = []  # of each block, one after the other: an array of tuples takes three times as long
    rules: set[UnmaskingAlgorithm] = set()
    wants = 0
    unstable = led = shaped = False
    for scheduled, offset in zip(batch, offsets, strict=True):
        if scheduled.span is None:
            continue
        request = scheduled.request
        rules.add(request.algorithm)
        wants |= request.required_stats
        unstable |= request.may_revise
        led |= request.decodes_left_to_right
        shaped |= request.logits_processors is not None
        for block in scheduled.span.blocks:
            blocks.append(block)
            owners.append(request)
            row = block.logits_start + offset
            numbers += (
                row, block.may_force, block.num_steps_forcing, block.initial_masks, block.step_budget,
                block.post_edit_steps,
            )  # fmt: skip
    if not blocks:
        return None

    n = len(blocks)
    columns = np.array(numbers, dtype=np.int64).reshape(n, -1).T.copy()
    size = max([block.size for block in blocks])
    state = _rectangle([block.state for block in blocks], size)
    needed = state == MASKED
    if unstable:
        needed |= (state == UNMASKED) & np.array([request.may_revise for request in owners])[:, None]
        for i, block in enumerate(blocks):
            needed[i, : block.num_skipped] = False
    may_force = columns[1] > 0
    for i in (i for i, request in enumerate(owners) if led and request.decodes_left_to_right):
        needed[i] = may_force[i] = False  # the rule leaves it as it is
    params = [request.params for request in owners]
    groups: tuple[AlgorithmBatch, ...]
    if len(rules) == 1:
        (rule,) = rules
        kept = _kept(rule, blocks, size)
        groups = (AlgorithmBatch(rule.key, np.arange(n), _end_to_end(params).reshape(n, -1), wants, kept),)
    else:
        groups = _groups(owners, blocks, params, size)
    return DenoiseBlocks(
        rows=columns[0],
        tokens=_rectangle([block.tokens for block in blocks], size),
        state=state,
        sampled=needed,
        may_force=may_force,
        num_steps_forcing=columns[2],
        initial_masks=columns[3],
        step_budget=columns[4],
        post_edit_steps=columns[5],
        remasked=_remasked(blocks, size),
        sampling=_drawing(owners, blocks, groups, size),
        groups=groups,
        noise_uniforms=_uniforms(owners, blocks, size, RENOISE) if any(rule.uniform_noise for rule in rules) else None,
        req_slot=np.array([request.req_slot for request in owners]) if wants & LogitStat.SELF_CONDITIONING else None,
        logits_processors=make_logits_processor_batch(owners, blocks, size) if shaped else None,
        grammar_blocks=walks(owners, blocks) if led else (),
        forced_tokens=recitals(owners, blocks) if led else (),
        num_logprobs=asked(owners),
    )


def _apart(batch: list[ScheduledRequest], offsets: list[int]) -> list[DenoiseBlocks]:
    plans = [_plan_blocks([scheduled], [offset]) for scheduled, offset in zip(batch, offsets, strict=True)]
    return [plan for plan in plans if plan is not None]


def _rectangle(parts: list[np.ndarray], size: int) -> np.ndarray:
    """The parts as rows of one array; where one is shorter than `size`, zeros follow (FIXED, of states)."""
    joined = _end_to_end(parts)
    if len(joined) < len(parts) * size:
        joined = _end_to_end([np.pad(part, (0, size - len(part))) for part in parts])
    return joined.reshape(len(parts), size)


def _end_to_end(parts: list[np.ndarray]) -> np.ndarray:
    """As ``np.concatenate``, which takes three times as long; each is contiguous, and they are of one type."""
    return np.frombuffer(bytearray().join(cast("list[bytearray]", parts)), dtype=parts[0].dtype)  # they are buffers


def _remasked(blocks: list[Block], size: int) -> np.ndarray | None:
    if all(block.remasked is None for block in blocks):
        return None
    none = np.zeros(size, dtype=np.bool_)
    return _rectangle([none if block.remasked is None else block.remasked for block in blocks], size)


def _kept(rule: UnmaskingAlgorithm, blocks: list[Block], size: int) -> np.ndarray | None:
    """What the rule remembers of its blocks, side by side, and room for one more record, or for its one."""
    if not rule.history_fields:
        return None
    records = [0 if block.history is None else block.history.shape[1] for block in blocks]
    kept = np.zeros((len(blocks), size, 1 if rule.static_history else max(records) + 1, len(rule.history_fields)))
    for place, block, n in zip(kept, blocks, records, strict=True):
        if n:
            place[: block.size, :n] = block.history
    return kept


def _groups(
    owners: list[Request], blocks: list[Block], params: list[np.ndarray], size: int
) -> tuple[AlgorithmBatch, ...]:
    """The blocks of each rule, by the requests that own them."""
    members: dict[UnmaskingAlgorithm, list[int]] = {}
    wants: dict[UnmaskingAlgorithm, int] = {}
    for i, request in enumerate(owners):
        rule = request.algorithm
        members.setdefault(rule, []).append(i)
        wants[rule] = wants.get(rule, 0) | request.required_stats
    return tuple(
        AlgorithmBatch(
            rule.key,
            np.array(mine, dtype=np.int64),
            np.stack([params[i] for i in mine]),
            wants[rule],
            _kept(rule, [blocks[i] for i in mine], size),
        )
        for rule, mine in members.items()
    )


def _drawing(
    owners: list[Request], blocks: list[Block], groups: tuple[AlgorithmBatch, ...], size: int
) -> SamplingInputs | None:
    """What the requests that draw need; None when all take the likeliest."""
    if not any(group.params[:, TEMPERATURE].any() for group in groups):
        return None
    limits = np.empty((len(blocks), MIN_P + 1))
    for group in groups:
        limits[group.members] = group.params[:, : limits.shape[1]]
        if get_algorithm(group.algorithm).uniform_noise:  # it brings the logits to their temperature itself
            limits[group.members, TEMPERATURE] = np.sign(group.params[:, TEMPERATURE])
    return SamplingInputs(limits, _uniforms(owners, blocks, size, DRAW))


def _uniforms(owners: list[Request], blocks: list[Block], size: int, stream: int) -> np.ndarray:
    """[blocks, size]: numbers from one of the requests' streams, at their present steps."""
    seeds = np.array([request.spec.seed for request in owners], dtype=np.uint64)
    starts = np.array([block.start for block in blocks], dtype=np.int64)
    steps = np.array([request.nfe for request in owners], dtype=np.int64)
    return uniforms(seeds[:, None], starts[:, None] + np.arange(size), steps[:, None], stream)

"""Builds the arrays of a StepPlan from scheduled requests, with one numpy operation per batch where possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from runtime.algorithms.base import MIN_P, TEMPERATURE, LogitStat, UnmaskingAlgorithm, get_algorithm
from runtime.algorithms.rng import DRAW, RENOISE, uniforms
from runtime.engine.kv_cache_manager import PageTable
from runtime.engine.logits_processors import make_logits_processor_batch
from runtime.engine.lora_manager import LoRAManager
from runtime.engine.request import Block, Request, ScheduledRequest
from runtime.engine.step_plan import (
    MASKED,
    UNMASKED,
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
from runtime.worker.sample.forced_tokens import forced_blocks, grammar_blocks
from runtime.worker.sample.logprobs import requested_logprobs


@dataclass(frozen=True)
class BatchLayout:
    """All arrays of a forward but the token ids. Read-only, as steps with the same layout reuse it.

    Attributes:
        cache_key: all values that determine the layout.
        offsets: added to a position of each scheduled request, gives its row.
        has_soft_embeddings: some request uses soft embeddings.
        has_self_conditioning: some request uses self-conditioning.
    """

    cache_key: list[int]
    positions: Ints
    slots: Ints
    visible_end: Ints32
    window_origin: Ints
    is_editable: Bools
    tiles: Ints32
    page_table: Ints32
    lora_slots: Ints32 | None
    offsets: list[int]
    has_soft_embeddings: bool
    has_self_conditioning: bool


class InputBuilder:
    """Builds step plans.

    While a batch only denoises, its layout stays the same. It is rebuilt only if its cache key has changed, and the key
    is computed only if the batch or a page table has changed.
    """

    def __init__(self, table: PageTable, strategy: Strategy, lora_manager: LoRAManager | None = None) -> None:
        self.table = table
        self.lora_manager = lora_manager or LoRAManager()
        self.strategy = strategy
        self._layout: BatchLayout | None = None
        self._batch: list[ScheduledRequest] = []  # the batch of `_layout`

    def plan(
        self,
        batch: list[ScheduledRequest],
        finish_deferred: Callable[[], object] = lambda: None,
        try_launch_next: Callable[[], bool] = bool,
    ) -> StepPlan:
        """Returns the plan of a step. Its blocks are in the order of the scheduled requests.

        Args:
            finish_deferred: applies deferred output to the blocks. It is called before the blocks are read; until then
                only the token ids of the requests must be current.
            try_launch_next: see `StepPlan`.
        """
        layout = self._layout
        if layout is None or layout.cache_key[0] != self.table.version or self._batch != batch:
            cache_key = self._cache_key(batch)
            if layout is None or layout.cache_key != cache_key:
                self._layout = self._make_layout(batch, cache_key)
            self._batch = batch
        return self.replan(batch, finish_deferred, try_launch_next)

    def replan(
        self, batch: list[ScheduledRequest], finish_deferred: Callable[[], object], try_launch_next: Callable[[], bool]
    ) -> StepPlan:
        """Returns the next plan of the same batch, without access to the state of its requests."""
        layout = self._layout
        assert layout is not None

        def sampled() -> DenoiseBlocks | None:
            finish_deferred()
            return _plan_blocks(batch, layout.offsets)

        return StepPlan(
            tokens=_concat([scheduled.tokens for scheduled in batch]),
            positions=layout.positions,
            slots=layout.slots,
            visible_end=layout.visible_end,
            window_origin=layout.window_origin,
            is_editable=layout.is_editable,
            tiles=layout.tiles,
            page_table=layout.page_table,
            make_blocks=sampled,
            make_blocks_per_request=lambda: _plan_blocks_per_request(batch, layout.offsets),
            try_launch_next=try_launch_next,
            soft_embeddings=soft_embedding_rows(batch, layout.offsets) if layout.has_soft_embeddings else None,
            self_conditioning=self_conditioning_rows(batch, layout.offsets) if layout.has_self_conditioning else None,
            lora_slots=layout.lora_slots,
            active_lora_modules=layout.cache_key[1],
        )

    def _cache_key(self, batch: list[ScheduledRequest]) -> list[int]:
        cache_key = [
            self.table.version,
            self.lora_manager.affected_modules({scheduled.request.adapter for scheduled in batch}),
        ]
        for scheduled in batch:
            request, first = scheduled.request, scheduled.first
            cache_key += (
                first,
                scheduled.last - first,
                request.num_final_tokens,
                request.req_slot,
                request.end,
                request.arrival_index,
                request.lora_slot,
            )
        return cache_key

    def _make_layout(self, batch: list[ScheduledRequest], cache_key: list[int]) -> BatchLayout:
        first, counts, settled, row, _, _, slot = np.array(cache_key[2:], dtype=np.int64).reshape(len(batch), -1).T
        layout = make_row_layout(tuple(counts.tolist()))
        owner, positions = layout.request_index, layout.positions(first)
        visible_end = self.strategy.visible_end([scheduled.request for scheduled in batch], owner, positions)
        boundary = settled[owner]
        page_size = self.table.page_size
        pages = self.table.rows(row, int(visible_end.max()))
        page = positions // page_size
        at = pages.ravel().take(owner * pages.shape[1] + page).astype(np.int64)
        return BatchLayout(
            cache_key=cache_key,
            positions=positions,
            slots=positions + (at - page) * page_size,
            visible_end=visible_end.astype(np.int32),
            window_origin=np.minimum(positions, boundary) if self.strategy.shared_window else positions,
            is_editable=positions >= boundary,
            tiles=layout.tiles,
            page_table=pages,
            lora_slots=slot[owner].astype(np.int32) if cache_key[1] else None,
            offsets=(layout.first_rows - first).tolist(),
            has_soft_embeddings=any(scheduled.request.soft_embedding_params is not None for scheduled in batch),
            has_self_conditioning=any(
                scheduled.request.required_stats & LogitStat.SELF_CONDITIONING for scheduled in batch
            ),
        )


def _plan_blocks(batch: list[ScheduledRequest], offsets: list[int]) -> DenoiseBlocks | None:
    """Returns the blocks to sample; None if there are none.

    Args:
        offsets: see `BatchLayout`.
    """
    blocks: list[Block] = []
    owners: list[Request] = []
    numbers: list[int] = []  # flat, as an array of tuples takes three times as long
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
    state = _pad_and_stack([block.state for block in blocks], size)
    needed = state == MASKED
    if unstable:
        needed |= (state == UNMASKED) & np.array([request.may_revise for request in owners])[:, None]
        for i, block in enumerate(blocks):
            needed[i, : block.num_skipped] = False
    may_force = columns[1] > 0
    for i in (i for i, request in enumerate(owners) if led and request.decodes_left_to_right):
        needed[i] = may_force[i] = False  # the algorithm leaves the block unchanged
    params = [request.params for request in owners]
    groups: tuple[AlgorithmBatch, ...]
    if len(rules) == 1:
        (rule,) = rules
        history = _history(rule, blocks, size)
        groups = (AlgorithmBatch(rule.key, np.arange(n), _concat(params).reshape(n, -1), wants, history),)
    else:
        groups = _groups(owners, blocks, params, size)
    return DenoiseBlocks(
        rows=columns[0],
        tokens=_pad_and_stack([block.tokens for block in blocks], size),
        state=state,
        sampled=needed,
        may_force=may_force,
        num_steps_forcing=columns[2],
        initial_masks=columns[3],
        step_budget=columns[4],
        post_edit_steps=columns[5],
        remasked=_remasked(blocks, size),
        sampling=_sampling_inputs(owners, blocks, groups, size),
        groups=groups,
        noise_uniforms=_uniforms(owners, blocks, size, RENOISE) if any(rule.uniform_noise for rule in rules) else None,
        req_slot=np.array([request.req_slot for request in owners]) if wants & LogitStat.SELF_CONDITIONING else None,
        logits_processors=make_logits_processor_batch(owners, blocks, size) if shaped else None,
        grammar_blocks=grammar_blocks(owners, blocks) if led else (),
        forced_tokens=forced_blocks(owners, blocks) if led else (),
        num_logprobs=requested_logprobs(owners),
    )


def _plan_blocks_per_request(batch: list[ScheduledRequest], offsets: list[int]) -> list[DenoiseBlocks]:
    plans = [_plan_blocks([scheduled], [offset]) for scheduled, offset in zip(batch, offsets, strict=True)]
    return [plan for plan in plans if plan is not None]


def _pad_and_stack(parts: list[np.ndarray], size: int) -> np.ndarray:
    """Returns [len(parts), size]; shorter parts are padded with zeros (FIXED, for states)."""
    joined = _concat(parts)
    if len(joined) < len(parts) * size:
        joined = _concat([np.pad(part, (0, size - len(part))) for part in parts])
    return joined.reshape(len(parts), size)


def _concat(parts: list[np.ndarray]) -> np.ndarray:
    """Same as ``np.concatenate`` for contiguous arrays of one dtype, in a third of the time."""
    return np.frombuffer(bytearray().join(cast("list[bytearray]", parts)), dtype=parts[0].dtype)  # arrays are buffers


def _remasked(blocks: list[Block], size: int) -> np.ndarray | None:
    if all(block.remasked is None for block in blocks):
        return None
    none = np.zeros(size, dtype=np.bool_)
    return _pad_and_stack([none if block.remasked is None else block.remasked for block in blocks], size)


def _history(rule: UnmaskingAlgorithm, blocks: list[Block], size: int) -> np.ndarray | None:
    """Returns the history [n, size, records, fields] of an algorithm's blocks, with a zero record for the next step."""
    if not rule.history_fields:
        return None
    records = [0 if block.history is None else block.history.shape[1] for block in blocks]
    history = np.zeros((len(blocks), size, 1 if rule.static_history else max(records) + 1, len(rule.history_fields)))
    for record, block, n in zip(history, blocks, records, strict=True):
        if n:
            record[: block.size, :n] = block.history
    return history


def _groups(
    owners: list[Request], blocks: list[Block], params: list[np.ndarray], size: int
) -> tuple[AlgorithmBatch, ...]:
    """Groups the blocks by the unmasking algorithm of their requests."""
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
            _history(rule, [blocks[i] for i in mine], size),
        )
        for rule, mine in members.items()
    )


def _sampling_inputs(
    owners: list[Request], blocks: list[Block], groups: tuple[AlgorithmBatch, ...], size: int
) -> SamplingInputs | None:
    """Returns sampling parameters and random numbers; None if all blocks are greedy."""
    if not any(group.params[:, TEMPERATURE].any() for group in groups):
        return None
    limits = np.empty((len(blocks), MIN_P + 1))
    for group in groups:
        limits[group.members] = group.params[:, : limits.shape[1]]
        if get_algorithm(group.algorithm).uniform_noise:  # the algorithm applies the temperature
            limits[group.members, TEMPERATURE] = np.sign(group.params[:, TEMPERATURE])
    return SamplingInputs(limits, _uniforms(owners, blocks, size, DRAW))


def _uniforms(owners: list[Request], blocks: list[Block], size: int, stream: int) -> np.ndarray:
    """Returns uniform random numbers [blocks, size] of one stream, for the current step of each request."""
    seeds = np.array([request.spec.seed for request in owners], dtype=np.uint64)
    starts = np.array([block.start for block in blocks], dtype=np.int64)
    steps = np.array([request.nfe for request in owners], dtype=np.int64)
    return uniforms(seeds[:, None], starts[:, None] + np.arange(size), steps[:, None], stream)

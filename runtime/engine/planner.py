"""Turns into the arrays of a StepPlan: one indexing for the whole batch wherever there is one."""

from __future__ import annotations

import numpy as np

from runtime.engine.page_table import PageTable
from runtime.engine.plan import BlockPlan, StepPlan, lay_out
from runtime.engine.request import FILLED, MASKED, Block, Request
from runtime.engine.scheduler import Turn
from runtime.kernels.batch import cut_tiles
from runtime.samplers.base import Param
from runtime.samplers.uniform import uniforms
from runtime.strategies.base import Strategy

Sampled = list[tuple[Request, list[Block]]]


def build_plan(
    turns: list[Turn], sampled: Sampled, *, table: PageTable, strategy: Strategy, block_size: int
) -> StepPlan:
    """The step's plan. `sampled`: of the turns that denoise, in their order, the request and its blocks that are
    sampled (``Strategy.sampled``)."""
    requests = [turn.request for turn in turns]
    counts = np.array([turn.prefill + turn.decode for turn in turns], dtype=np.int64)
    first = np.array([request.cached for request in requests], dtype=np.int64)
    owner, positions = lay_out(first, counts)
    visible_end = strategy.visible_end(requests, owner, positions)

    ends = (first + counts).tolist()
    tokens = np.concatenate([r.tokens[r.cached : end] for r, end in zip(requests, ends, strict=True)])
    pages = table.rows([request.row for request in requests], int(visible_end.max()))
    page = positions // table.page_size
    at = pages.ravel().take(owner * pages.shape[1] + page).astype(np.int64)
    first_rows = (np.cumsum(counts) - counts).tolist()
    denoising = [row for row, turn in zip(first_rows, turns, strict=True) if denoises(turn)]
    return StepPlan(
        tokens=tokens,
        positions=positions,
        slots=positions + (at - page) * table.page_size,
        visible_end=visible_end.astype(np.int32),
        window_origin=positions,
        tiles=cut_tiles(counts),
        page_table=pages,
        blocks=_plan_blocks(sampled, denoising, tokens, block_size),
    )


def denoises(turn: Turn) -> bool:
    """Whether blocks of its request are sampled, rather than only written to the cache."""
    return turn.decode > 0 and not turn.request.committing


def _plan_blocks(sampled: Sampled, first_rows: list[int], tokens: np.ndarray, block_size: int) -> BlockPlan | None:
    blocks: list[Block] = []
    owners: list[Request] = []
    rows: list[int] = []
    for (request, mine), first_row in zip(sampled, first_rows, strict=True):
        for block in mine:
            blocks.append(block)
            owners.append(request)
            rows.append(first_row + block.start - request.cached)
    if not blocks:
        return None

    n = len(blocks)
    first = np.array(rows, dtype=np.int64)
    state = np.concatenate([r.state[b.start : b.start + block_size] for r, b in zip(owners, blocks, strict=True)])
    state = state.reshape(n, block_size)
    per_block = np.concatenate([request.params for request in owners]).reshape(n, len(Param))
    counts = np.array([(b.advanced, b.initial_masks, b.post_edit_steps) for b in blocks], dtype=np.int64)
    needed = state == MASKED
    unstable = [request.unstable for request in owners]
    if True in unstable:
        needed |= (state == FILLED) & np.array(unstable)[:, None]
    return BlockPlan(
        rows=first,
        tokens=tokens[first[:, None] + np.arange(block_size)],
        state=state,
        sampled=needed,
        params=per_block,
        may_force=np.array([block.may_force for block in blocks]),
        advanced=counts[:, 0],
        initial_masks=counts[:, 1],
        post_edit_steps=counts[:, 2],
        remasked=_remasked(blocks, block_size),
        uniform=_uniform(owners, blocks, per_block, block_size),
        groups=_groups(owners),
    )


def _remasked(blocks: list[Block], block_size: int) -> np.ndarray | None:
    if all(block.remasked is None for block in blocks):
        return None
    none = np.zeros(block_size, dtype=np.bool_)
    return np.stack([none if block.remasked is None else block.remasked for block in blocks])


def _uniform(owners: list[Request], blocks: list[Block], params: np.ndarray, block_size: int) -> np.ndarray | None:
    """[n, B] random numbers of the requests that draw; None when all take the likeliest."""
    if not params[:, Param.TEMPERATURE].any():
        return None
    seeds = np.array([request.spec.seed for request in owners], dtype=np.uint64)
    starts = np.array([block.start for block in blocks], dtype=np.int64)
    steps = np.array([request.nfe for request in owners], dtype=np.int64)
    return uniforms(seeds[:, None], starts[:, None] + np.arange(block_size), steps[:, None])


def _groups(owners: list[Request]) -> tuple[tuple[str, np.ndarray], ...]:
    algorithms = {request.spec.decoding.algorithm for request in owners}
    if len(algorithms) == 1:
        return ((algorithms.pop(), np.arange(len(owners))),)
    by_rule: dict[str, list[int]] = {}
    for i, request in enumerate(owners):
        by_rule.setdefault(request.spec.decoding.algorithm, []).append(i)
    return tuple((rule, np.array(members, dtype=np.int64)) for rule, members in by_rule.items())

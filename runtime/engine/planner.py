"""Turns into the arrays of a StepPlan: one indexing for the whole batch wherever there is one."""

from __future__ import annotations

import numpy as np

from runtime.engine.page_table import PageTable
from runtime.engine.plan import BlockPlan, Drawing, RulePlan, StepPlan, lay_out
from runtime.engine.request import FILLED, MASKED, Block, Request
from runtime.engine.scheduler import Turn
from runtime.kernels.batch import cut_tiles
from runtime.samplers.base import TEMPERATURE, Rule
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
    rules: set[Rule] = set()
    wants = 0
    for (request, mine), first_row in zip(sampled, first_rows, strict=True):
        rules.add(request.rule)
        wants |= request.wants
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
    params = [request.params for request in owners]
    counters = [(b.advanced, b.initial_masks, b.given_steps, b.post_edit_steps) for b in blocks]
    counts = np.array(counters, dtype=np.int64)
    needed = state == MASKED
    unstable = [request.unstable for request in owners]
    if True in unstable:
        needed |= (state == FILLED) & np.array(unstable)[:, None]
    groups: tuple[RulePlan, ...]
    if len(rules) == 1:
        groups = (RulePlan(rules.pop().key, np.arange(n), np.concatenate(params).reshape(n, -1), wants),)
    else:
        groups = _groups(owners, params)
    return BlockPlan(
        rows=first,
        tokens=tokens[first[:, None] + np.arange(block_size)],
        state=state,
        sampled=needed,
        may_force=np.array([block.may_force for block in blocks]),
        advanced=counts[:, 0],
        initial_masks=counts[:, 1],
        given_steps=counts[:, 2],
        post_edit_steps=counts[:, 3],
        remasked=_remasked(blocks, block_size),
        drawing=_drawing(owners, blocks, groups, block_size),
        groups=groups,
    )


def _remasked(blocks: list[Block], block_size: int) -> np.ndarray | None:
    if all(block.remasked is None for block in blocks):
        return None
    none = np.zeros(block_size, dtype=np.bool_)
    return np.stack([none if block.remasked is None else block.remasked for block in blocks])


def _groups(owners: list[Request], params: list[np.ndarray]) -> tuple[RulePlan, ...]:
    """The blocks of each rule, by the requests that own them."""
    members: dict[str, list[int]] = {}
    wants: dict[str, int] = {}
    for i, request in enumerate(owners):
        key = request.rule.key
        members.setdefault(key, []).append(i)
        wants[key] = wants.get(key, 0) | request.wants
    return tuple(
        RulePlan(key, np.array(mine, dtype=np.int64), np.stack([params[i] for i in mine]), wants[key])
        for key, mine in members.items()
    )


def _drawing(
    owners: list[Request], blocks: list[Block], groups: tuple[RulePlan, ...], block_size: int
) -> Drawing | None:
    """What the requests that draw need; None when all take the likeliest."""
    if not any(group.params[:, TEMPERATURE].any() for group in groups):
        return None
    limits = np.empty((len(blocks), 3))
    for group in groups:
        limits[group.members] = group.params[:, : limits.shape[1]]
    seeds = np.array([request.spec.seed for request in owners], dtype=np.uint64)
    starts = np.array([block.start for block in blocks], dtype=np.int64)
    steps = np.array([request.nfe for request in owners], dtype=np.int64)
    return Drawing(limits, uniforms(seeds[:, None], starts[:, None] + np.arange(block_size), steps[:, None]))

"""Turns into the arrays of a StepPlan: one indexing for the whole batch wherever there is one."""

from __future__ import annotations

import numpy as np

from runtime.engine.page_table import PageTable
from runtime.engine.plan import BlockPlan, StepPlan
from runtime.engine.request import FILLED, MASKED, Block, Request
from runtime.engine.scheduler import Turn
from runtime.samplers.base import Param
from runtime.samplers.uniform import uniforms
from runtime.strategies.base import Strategy

Sampled = list[tuple[Request, list[Block]]]


def build_plan(turns: list[Turn], *, table: PageTable, strategy: Strategy, block_size: int) -> tuple[StepPlan, Sampled]:
    """The step's plan, and the blocks it samples, request by request in the plan's order."""
    requests = [turn.request for turn in turns]
    counts = np.array([turn.prefill + turn.decode for turn in turns], dtype=np.int64)
    cached = np.array([request.cached for request in requests], dtype=np.int64)
    seq_rows = np.zeros(len(turns) + 1, dtype=np.int64)
    np.cumsum(counts, out=seq_rows[1:])
    kv_len = cached + counts

    tokens = np.concatenate([r.tokens[r.cached : end] for r, end in zip(requests, kv_len.tolist(), strict=True)])
    pages = table.rows([request.row for request in requests], int(kv_len.max()))
    # Rows come in whole blocks, and a block's slots follow each other: in one page, or in the pages of its unit.
    owner = np.repeat(np.arange(len(turns)), counts // block_size)
    starts = np.arange(0, len(tokens), block_size) + (cached - seq_rows[:-1])[owner]
    page, offset = np.divmod(starts, table.page_size)
    slots = pages[owner, page].astype(np.int64) * table.page_size + offset
    within = np.arange(block_size)

    blocks, sampled = _plan_blocks(turns, seq_rows.tolist(), tokens, strategy, block_size)
    plan = StepPlan(
        tokens=tokens,
        positions=(starts[:, None] + within).ravel(),
        slots=(slots[:, None] + within).ravel(),
        seq_rows=seq_rows.astype(np.int32),
        cached=cached.astype(np.int32),
        kv_len=kv_len.astype(np.int32),
        page_table=pages,
        blocks=blocks,
    )
    return plan, sampled


def _plan_blocks(
    turns: list[Turn], seq_rows: list[int], tokens: np.ndarray, strategy: Strategy, block_size: int
) -> tuple[BlockPlan | None, Sampled]:
    sampled: Sampled = []
    blocks: list[Block] = []
    owners: list[Request] = []
    rows: list[int] = []
    may_force: list[bool] = []
    states: list[np.ndarray] = []
    params: list[np.ndarray] = []
    counters: list[int] = []
    for turn, first_row in zip(turns, seq_rows, strict=False):
        request = turn.request
        if not turn.decode or request.committing:
            continue
        mine = strategy.sampled(request)
        sampled.append((request, mine))
        for block in mine:
            start = block.start
            blocks.append(block)
            owners.append(request)
            rows.append(first_row + start - request.cached)
            states.append(request.state[start : start + block_size])
            params.append(request.params)
            may_force.append(block.may_force)
            counters += (block.advanced, block.initial_masks, block.post_edit_steps)
    if not blocks:
        return None, sampled

    n = len(blocks)
    first = np.array(rows, dtype=np.int64)
    state = np.concatenate(states).reshape(n, block_size)
    per_block = np.concatenate(params).reshape(n, len(Param))
    counts = np.array(counters, dtype=np.int64).reshape(n, 3)
    needed = state == MASKED
    unstable = [request.unstable for request in owners]
    if True in unstable:
        needed |= (state == FILLED) & np.array(unstable)[:, None]
    plan = BlockPlan(
        rows=first,
        tokens=tokens.reshape(-1, block_size)[first // block_size],
        state=state,
        sampled=needed,
        params=per_block,
        may_force=np.array(may_force),
        advanced=counts[:, 0],
        initial_masks=counts[:, 1],
        post_edit_steps=counts[:, 2],
        remasked=_remasked(blocks, block_size),
        uniform=_uniform(owners, blocks, per_block, block_size),
        groups=_groups(owners),
    )
    return plan, sampled


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

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
    positions = np.arange(len(tokens)) + np.repeat(cached - seq_rows[:-1], counts)
    pages = table.rows([request.row for request in requests], int(kv_len.max()))
    owner = np.repeat(np.arange(len(turns)), counts)
    page, offset = np.divmod(positions, table.page_size)
    slots = pages[owner, page].astype(np.int64) * table.page_size + offset

    blocks, sampled = _plan_blocks(turns, seq_rows.tolist(), tokens, strategy, block_size)
    plan = StepPlan(
        tokens=tokens,
        positions=positions,
        slots=slots,
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
    for turn, first_row in zip(turns, seq_rows, strict=False):
        request = turn.request
        if not turn.decode or request.committing:
            continue
        mine, forces = strategy.sampled(request)
        sampled.append((request, mine))
        may_force += forces
        shift = first_row - request.cached
        for block in mine:
            blocks.append(block)
            owners.append(request)
            rows.append(block.start + shift)
    if not blocks:
        return None, sampled

    first = np.array(rows, dtype=np.int64)
    n = len(blocks)
    state = np.concatenate([r.state[b.start : b.start + block_size] for r, b in zip(owners, blocks, strict=True)])
    state = state.reshape(n, block_size)
    params = np.concatenate([request.params for request in owners]).reshape(n, len(Param))
    counters = np.array([(b.advanced, b.initial_masks, b.post_edit_steps) for b in blocks], dtype=np.int64)
    sampled_state = state == MASKED
    if any(request.unstable for request in owners):
        unstable = np.array([request.unstable for request in owners])
        sampled_state |= (state == FILLED) & unstable[:, None]
    plan = BlockPlan(
        rows=first,
        tokens=tokens[first[:, None] + np.arange(block_size)],
        state=state,
        sampled=sampled_state,
        params=params,
        may_force=np.array(may_force),
        advanced=counters[:, 0],
        initial_masks=counters[:, 1],
        post_edit_steps=counters[:, 2],
        remasked=_remasked(blocks, block_size),
        uniform=_uniform(owners, blocks, params, block_size),
        groups=_groups(owners),
    )
    for block, force in zip(blocks, may_force, strict=True):
        block.advanced += force
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

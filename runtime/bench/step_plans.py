"""Step plans as the scheduler would write them, for requests that exist only to be timed."""

from __future__ import annotations

import numpy as np

from runtime.engine.plan import BlockPlan, RulePlan, StepPlan, block_causal_plan
from runtime.engine.request import FILLED, MASKED
from runtime.samplers import get_rule


def pages_needed(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def decode_plan(
    batch: int, context: int, *, block_size: int, page_size: int, mask_id: int, pages: int, filled: float = 0.0
) -> StepPlan:
    """`batch` requests with `context` cached tokens, each feeding one block under the threshold rule. `filled` of its
    positions, drawn at random, hold random ids; the others are masked and sampled."""
    random = np.random.default_rng(batch)
    some = random.permuted(np.tile(np.arange(block_size), (batch, 1)), axis=1) < round(filled * block_size)
    tokens = np.where(some, random.integers(0, mask_id, some.shape), mask_id)
    rule = get_rule("threshold")
    values = {"accept_threshold": 0.95, "max_steps_per_block": 2 * block_size}
    params = np.tile([values.get(name, 0.0) for name in rule.columns], (batch, 1))
    every = np.arange(batch)
    blocks = BlockPlan(
        rows=every * block_size,
        tokens=tokens,
        state=np.where(some, FILLED, MASKED).astype(np.int8),
        sampled=~some,
        may_force=np.ones(batch, bool),
        advanced=np.zeros(batch, np.int64),
        initial_masks=np.full(batch, block_size),
        given_steps=np.zeros(batch, np.int64),
        post_edit_steps=np.zeros(batch, np.int64),
        remasked=None,
        drawing=None,
        groups=(RulePlan(rule.key, every, params, 0),),
    )
    return _plan(tokens, context, page_size, block_size, pages, blocks)


def prefill_plans(
    batch: int, length: int, *, block_size: int, page_size: int, vocab_size: int, pages: int, budget: int
) -> list[StepPlan]:
    """`batch` prompts of `length` random tokens, whole prompts a forward up to `budget` tokens, at least one. A block
    of `length` makes a canvas of it, in which every row sees all."""
    each = max(1, budget // length)
    random = np.random.default_rng(batch * length)
    plans = []
    for first in range(0, batch, each):
        tokens = random.integers(0, vocab_size, (min(each, batch - first), length))
        plans.append(_plan(tokens, 0, page_size, block_size, pages, None))
    return plans


def _plan(
    tokens: np.ndarray, cached: int, page_size: int, block_size: int, pages: int, blocks: BlockPlan | None
) -> StepPlan:
    """Rows of equal length for every request, its pages drawn at random from the pool."""
    batch, rows = tokens.shape
    count = pages_needed(cached + rows, page_size)
    table = np.random.default_rng(7).permutation(pages)[: batch * count].reshape(batch, count).astype(np.int32)
    first, counts = np.full(batch, cached), np.full(batch, rows)
    return block_causal_plan(
        tokens.reshape(-1), first, counts, table, page_size=page_size, block_size=block_size, blocks=blocks
    )

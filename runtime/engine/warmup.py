"""First steps of every size, so that compiling, allocating and failing happen before the first request."""

from __future__ import annotations

import numpy as np

from runtime.engine.model_runner import ModelRunner
from runtime.samplers import Stat, get_rule
from runtime.state.plan import BlockPlan, Drawing, RulePlan, block_causal_plan
from runtime.state.request import MASKED


def warm_up(runner: ModelRunner, *, rows: int, longest: int) -> None:
    """Steps of one block, two, four ... and at last `rows` rows through the whole runner: kernels choose their tiles by
    the size of a step. The sequences are at most `longest` tokens long and lie on the first pages."""
    size = runner.block_size
    while size < rows:
        _step(runner, size, longest)
        size *= 2
    _step(runner, rows, longest)


def _step(runner: ModelRunner, rows: int, longest: int) -> None:
    """Every row is sampled, drawing under top-p beside the rest that a rule can ask for: no step takes more memory."""
    size = runner.block_size
    longest = max(longest // size, 1) * size
    counts = [min(longest, rows - start) // size * size for start in range(0, rows // size * size, longest)]
    total = sum(counts)
    table = np.arange(-(-max(counts) // runner.pool.page_size), dtype=np.int32)
    blocks = total // size
    shape = (blocks, size)
    rule = get_rule("threshold")
    params = np.tile([1.0 if name == "max_steps_per_block" else 0.5 for name in rule.columns], (blocks, 1))
    none = np.zeros(blocks, dtype=np.int64)
    token = runner.mask_id or 0
    block_plan = BlockPlan(
        rows=np.arange(0, total, size),
        tokens=np.full(shape, token),
        state=np.full(shape, MASKED, dtype=np.int8),
        sampled=np.ones(shape, dtype=np.bool_),
        may_force=np.ones(blocks, dtype=np.bool_),
        advanced=none + 1,  # a model that conditions itself is told of a step before
        initial_masks=none + size,
        given_steps=none,
        post_edit_steps=none,
        remasked=None,
        drawing=Drawing(np.tile([1.0, 0.9, 0.0], (blocks, 1)), np.zeros(shape)),
        groups=(RulePlan(rule.key, np.arange(blocks), params, sum(Stat)),),
        place=none,
    )
    first = np.zeros(len(counts), dtype=np.int64)
    runner.run(
        block_causal_plan(
            np.full(total, token),
            first,
            np.array(counts),
            np.tile(table, (len(counts), 1)),
            page_size=runner.pool.page_size,
            block_size=size,
            blocks=block_plan,
        )
    )

"""First steps of every size, so that compiling, allocating and failing happen before the first request."""

from __future__ import annotations

import numpy as np

from runtime.engine.model_runner import ModelRunner
from runtime.engine.plan import BlockPlan, block_causal_plan
from runtime.engine.request import MASKED
from runtime.samplers import Param


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
    params = np.zeros((blocks, len(Param)))
    for column, value in (
        (Param.MAX_STEPS, 1),
        (Param.REMASK, 0.5),
        (Param.PENALTY, 0.5),
        (Param.TEMPERATURE, 1),
        (Param.TOP_P, 0.9),
    ):
        params[:, column] = value
    none = np.zeros(blocks, dtype=np.int64)
    block_plan = BlockPlan(
        rows=np.arange(0, total, size),
        tokens=np.full(shape, runner.mask_id),
        state=np.full(shape, MASKED, dtype=np.int8),
        sampled=np.ones(shape, dtype=np.bool_),
        params=params,
        may_force=np.ones(blocks, dtype=np.bool_),
        advanced=none,
        initial_masks=none + size,
        post_edit_steps=none,
        remasked=None,
        uniform=np.zeros(shape),
        groups=(("threshold", np.arange(blocks)),),
    )
    first = np.zeros(len(counts), dtype=np.int64)
    runner.run(
        block_causal_plan(
            np.full(total, runner.mask_id),
            first,
            np.array(counts),
            np.tile(table, (len(counts), 1)),
            page_size=runner.pool.page_size,
            block_size=size,
            blocks=block_plan,
        )
    )

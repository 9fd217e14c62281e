"""Divides `num_denoising_steps` between the blocks of an answer (docs/research/decoding-rules.md#step-quotas)."""

from __future__ import annotations

from collections.abc import Sequence


def split_steps(total: int, masks: Sequence[int]) -> list[int]:
    """Returns the number of steps of each block.

    Steps are divided evenly, and the remainder goes to the first blocks. A block gets at most as many steps as it has
    masks; its excess goes to the other blocks. The sum is `total`, or the number of all masks if that is less.

    Args:
        total: number of steps.
        masks: masks of each block, at least 1.
    """
    result = list(masks)
    left, open_blocks = min(total, sum(masks)), list(range(len(masks)))
    while open_blocks:
        each, more = divmod(left, len(open_blocks))
        steps_of = {block: each + (i < more) for i, block in enumerate(open_blocks)}
        full = [block for block in open_blocks if masks[block] < steps_of[block]]
        if not full:
            for block, steps in steps_of.items():
                result[block] = steps
            break
        left -= sum(masks[block] for block in full)
        open_blocks = [block for block in open_blocks if masks[block] >= steps_of[block]]
    return result

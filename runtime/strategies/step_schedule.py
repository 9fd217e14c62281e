"""Divides `num_denoising_steps` between the blocks of an answer (docs/decoding-rules.md#step-quotas)."""

from __future__ import annotations

from collections.abc import Sequence


def shares(total: int, masks: Sequence[int]) -> list[int]:
    """Steps of each block: even, the remainder to the first ones, none more than the block has `masks`.

    What a small block leaves goes to the others, so that the sum is `total`, or the number of all masks if that is
    less. Each block has at least one mask and gets at least one step if there are that many.
    """
    result = list(masks)
    left, open_blocks = min(total, sum(masks)), list(range(len(masks)))
    while open_blocks:
        each, more = divmod(left, len(open_blocks))
        wanted = {block: each + (i < more) for i, block in enumerate(open_blocks)}
        full = [block for block in open_blocks if masks[block] < wanted[block]]
        if not full:
            for block, steps in wanted.items():
                result[block] = steps
            break
        left -= sum(masks[block] for block in full)
        open_blocks = [block for block in open_blocks if masks[block] >= wanted[block]]
    return result

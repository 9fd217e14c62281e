"""`threshold`: accept whatever is confident enough, mask again what no longer is (decoding.md 3.1)."""

from __future__ import annotations

import torch

from runtime.samplers.base import BlockBatch, Decision, Param, accept_or_force, register_rule


@register_rule("threshold")
def threshold(blocks: BlockBatch) -> Decision:
    accepted, forced = accept_or_force(blocks)
    remask_below = blocks.param(Param.REMASK)
    past_cap = (blocks.advanced >= blocks.params[:, Param.MAX_STEPS])[:, None]
    remasked = (
        blocks.filled
        & (blocks.current < remask_below)  # never true at 0, where remasking is off
        & ~blocks.remasked
        & ~blocks.capped()
        & ~past_cap
    )
    masked = (blocks.masked & ~accepted) | remasked
    return Decision(
        tokens=torch.where(accepted, blocks.choice, blocks.tokens),
        masked=masked,
        forced=forced,
        edited=torch.zeros_like(accepted),
        remasked=remasked,
        ended=~masked.any(1) & (remask_below[:, 0] <= 0),
    )

"""`fixed`: a set number of steps a block, each taking an even share of its masks (decoding.md 3.1)."""

from __future__ import annotations

import torch

from runtime.samplers.base import BlockBatch, Decision, Param, register_rule


@register_rule("fixed")
def fixed(blocks: BlockBatch) -> Decision:
    masks = blocks.initial_masks
    steps = torch.minimum(blocks.params[:, Param.STEPS].long(), masks).clamp(min=1)
    share = masks // steps + (blocks.advanced < masks % steps)  # the remainder goes to the first steps
    share = torch.where(blocks.may_force, share, torch.zeros_like(share))

    conf = blocks.conf.masked_fill(~blocks.masked, float("-inf"))
    order = conf.argsort(dim=1, descending=True, stable=True)  # ties: lowest position
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    accepted = blocks.masked & ((rank < share[:, None]) | blocks.capped())
    masked = blocks.masked & ~accepted
    return Decision(
        tokens=torch.where(accepted, blocks.choice, blocks.tokens),
        masked=masked,
        forced=torch.zeros_like(blocks.may_force),
        edited=torch.zeros_like(accepted),
        remasked=torch.zeros_like(accepted),
        ended=~masked.any(1),
    )

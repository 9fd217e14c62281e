"""`edit`: fill masks and replace filled tokens until a block comes to rest (decoding.md 3.2)."""

from __future__ import annotations

import torch

from runtime.samplers.base import BlockBatch, Decision, Param, accept_or_force, register_rule


@register_rule("edit")
def edit(blocks: BlockBatch) -> Decision:
    accepted, forced = accept_or_force(blocks)
    began_full = ~blocks.masked.any(1)
    out_of_steps = began_full & (blocks.post_edit_steps >= blocks.params[:, Param.MAX_POST_EDIT])
    edited = (
        blocks.filled
        & (blocks.conf > blocks.param(Param.EDIT))
        & (blocks.choice != blocks.tokens)
        & ~out_of_steps[:, None]
    )
    return Decision(
        tokens=torch.where(accepted | edited, blocks.choice, blocks.tokens),
        masked=blocks.masked & ~accepted,
        forced=forced,
        edited=edited,
        remasked=torch.zeros_like(edited),
        ended=began_full & (out_of_steps | ~edited.any(1)),
    )

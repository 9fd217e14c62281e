"""`fixed`: a set number of steps a block, each taking an even share of its masks (decoding.md 3.1)."""

from __future__ import annotations

from runtime.samplers.base import BlockBatch, Decision, Rule, register_rule
from runtime.samplers.shared import MAX_STEPS, STEPS, filling, quota, rank


@register_rule
class Fixed(Rule):
    key = "fixed"
    fields = (STEPS, MAX_STEPS)

    def decide(self, blocks: BlockBatch) -> Decision:
        best = rank(blocks.conf, blocks.masked) < quota(blocks)[:, None]
        return filling(blocks, blocks.masked & (best | blocks.capped()))

"""`sequential`: from left to right, an even share of the masks a step (decoding.md 3.1)."""

from __future__ import annotations

from runtime.samplers.base import BlockBatch, Decision, Rule, register_rule
from runtime.samplers.shared import MAX_STEPS, STEPS, filling, quota


@register_rule
class Sequential(Rule):
    key = "sequential"
    fields = (STEPS, MAX_STEPS)

    def decide(self, blocks: BlockBatch) -> Decision:
        leftmost = blocks.masked.cumsum(1) <= quota(blocks)[:, None]
        return filling(blocks, blocks.masked & (leftmost | blocks.capped()))

"""`sequential`: from left to right, an even share of the masks a step (decoding.md 3.1)."""

from __future__ import annotations

from runtime.samplers.base import BlockBatch, Decision, Rule, register_rule
from runtime.samplers.shared import BY_STEPS, COMMON, STEPS, filling, late, quota, rank


@register_rule
class Sequential(Rule):
    key = "sequential"
    fields = (STEPS, *COMMON)
    tradeoff = BY_STEPS

    def decide(self, blocks: BlockBatch) -> Decision:
        first = rank(-late(blocks).float(), blocks.masked) < quota(blocks)[:, None]
        return filling(blocks, blocks.masked & (first | blocks.capped()))

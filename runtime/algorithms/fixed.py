"""`fixed`: takes the quota of a step by confidence (docs/decoding-rules.md#algorithm-fixed)."""

from __future__ import annotations

from runtime.algorithms.base import BlockBatch, Decision, register_rule
from runtime.algorithms.common import BY_STEPS, COMMON, METRIC, STEPS, RankedRule, filling, order, quota, rank


@register_rule
class Fixed(RankedRule):
    key = "fixed"
    fields = (STEPS, METRIC, *COMMON)
    tradeoff = BY_STEPS

    def decide(self, blocks: BlockBatch) -> Decision:
        best = rank(order(blocks), blocks.masked) < quota(blocks)[:, None]
        return filling(blocks, blocks.masked & (best | blocks.capped()))

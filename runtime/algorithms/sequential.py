"""`sequential`: takes the quota of a step from left to right (docs/decoding-rules.md#algorithm-sequential)."""

from __future__ import annotations

from runtime.algorithms.base import BlockBatch, Decision, Rule, register_rule
from runtime.algorithms.common import BY_STEPS, COMMON, STEPS, filling, late, quota, rank


@register_rule
class Sequential(Rule):
    key = "sequential"
    fields = (STEPS, *COMMON)
    tradeoff = BY_STEPS

    def decide(self, blocks: BlockBatch) -> Decision:
        first = rank(-late(blocks).float(), blocks.masked) < quota(blocks)[:, None]
        return filling(blocks, blocks.masked & (first | blocks.capped()))

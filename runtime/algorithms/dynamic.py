"""`dynamic`: takes confident positions, at least the quota (docs/decoding-rules.md#algorithm-dynamic)."""

from __future__ import annotations

from runtime.algorithms.base import BlockBatch, Decision, register_rule
from runtime.algorithms.common import ACCEPT, BY_STEPS, COMMON, METRIC, STEPS, RankedRule, filling, order, quota, rank


@register_rule
class Dynamic(RankedRule):
    key = "dynamic"
    fields = (ACCEPT, STEPS, METRIC, *COMMON)
    tradeoff = BY_STEPS

    def decide(self, blocks: BlockBatch) -> Decision:
        """A block that may not force has no quota and takes nothing."""
        share = quota(blocks)
        confident = blocks.masked & (blocks.conf > blocks.param(ACCEPT.name))
        enough = (confident.sum(1) >= share)[:, None]
        best = blocks.masked & (rank(order(blocks), blocks.masked) < share[:, None])
        accepted = ((confident & enough) | (best & ~enough)) & blocks.may_force[:, None]
        forced = blocks.may_force & blocks.masked.any(1) & ~confident.any(1)
        return filling(blocks, accepted | (blocks.masked & blocks.capped()), forced)

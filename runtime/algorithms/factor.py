"""`factor`: takes more positions the higher their confidence is (docs/decoding-rules.md#algorithm-factor)."""

from __future__ import annotations

import torch

from runtime.algorithms.base import BlockBatch, Decision, Tradeoff, register_rule
from runtime.algorithms.common import COMMON, METRIC, RankedRule, filling, or_best, order, rank
from runtime.request.field_spec import Field

FACTOR = Field(
    name="factor", default=1.0, high=1e6,
    help="n positions are taken at once where each one's confidence is at least 1 - factor / (n + 1)",
)  # fmt: skip


@register_rule
class Factor(RankedRule):
    key = "factor"
    fields = (FACTOR, METRIC, *COMMON)
    tradeoff = Tradeoff(FACTOR, (0.5, 1, 1.25, 1.5, 2, 4))

    def decide(self, blocks: BlockBatch) -> Decision:
        """In their order, positions are taken up to the first whose confidence is less than its place asks for."""
        by = order(blocks)
        place = rank(by, blocks.masked)
        conf = torch.empty_like(blocks.conf).scatter_(1, place, blocks.conf)  # from the first in the order to the last
        n = torch.arange(1, place.shape[1] + 1, device=place.device)
        sure = (conf >= 1 - blocks.param("factor") / (n + 1)) & (n <= blocks.masked.sum(1, keepdim=True))
        count = sure.int().cumprod(1).sum(1, keepdim=True)
        return filling(blocks, *or_best(blocks, blocks.masked & (place < count), by))

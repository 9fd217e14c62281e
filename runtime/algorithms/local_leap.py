"""`local_leap`: takes anchors and their neighbors (docs/decoding-rules.md#algorithm-local_leap; arXiv 2510.07081)."""

from __future__ import annotations

import torch

from runtime.algorithms.base import BlockBatch, Decision, Tradeoff, register_rule
from runtime.algorithms.common import COMMON, METRIC, RankedRule, filling, or_best, order
from runtime.request.field_spec import Field, share

ANCHOR = share("local_leap.anchor", 0.9, "confidence from which a masked position is an anchor, which is taken")
NEIGHBOR = share("local_leap.neighbor", 0.75, "confidence from which one in an anchor's reach is taken too")
RADIUS = Field(
    name="local_leap.radius", kind="integer", default=4, high=2**31, help="positions that an anchor reaches, each way"
)


@register_rule
class LocalLeap(RankedRule):
    key = "local_leap"
    fields = (ANCHOR, NEIGHBOR, RADIUS, METRIC, *COMMON)
    tradeoff = Tradeoff(NEIGHBOR, (0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.1))

    def decide(self, blocks: BlockBatch) -> Decision:
        anchors = blocks.masked & (blocks.conf >= blocks.param(ANCHOR.name))
        at = torch.arange(anchors.shape[1], device=anchors.device)
        distance = (at[:, None] - at).abs()  # [B, B]
        reach = distance <= blocks.param(RADIUS.name)[:, :, None]  # [n, B, B]
        near = (reach & anchors[:, None, :]).any(2)
        neighbors = blocks.masked & near & (blocks.conf >= blocks.param(NEIGHBOR.name))
        return filling(blocks, *or_best(blocks, anchors | neighbors, order(blocks)))

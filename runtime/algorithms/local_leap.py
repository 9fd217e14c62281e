"""`local_leap`: unmasks anchors and their neighbors.

See docs/research/decoding-rules.md#algorithm-local_leap; arXiv 2510.07081.
"""

from __future__ import annotations

import torch

from runtime.algorithms import base
from runtime.request.field_spec import Field, fraction_field

ANCHOR = fraction_field(
    "local_leap.anchor", 0.9, "confidence from which a masked position is an anchor, which is unmasked"
)
NEIGHBOR = fraction_field(
    "local_leap.neighbor", 0.75, "confidence from which a position near an anchor is unmasked too"
)
RADIUS = Field(
    name="local_leap.radius", kind="integer", default=4, high=2**31, help="maximum distance of a position to its anchor"
)


@base.register_algorithm
class LocalLeap(base.RankedAlgorithm):
    key = "local_leap"
    fields = (ANCHOR, NEIGHBOR, RADIUS, base.METRIC, *base.COMMON)
    speed_accuracy_knob = base.SpeedAccuracyKnob(NEIGHBOR, (0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.1))

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        anchors = blocks.masked & (blocks.confidence >= blocks.param(ANCHOR.name))
        at = torch.arange(anchors.shape[1], device=anchors.device)
        distance = (at[:, None] - at).abs()  # [B, B]
        reach = distance <= blocks.param(RADIUS.name)[:, :, None]  # [n, B, B]
        near = (reach & anchors[:, None, :]).any(2)
        neighbors = blocks.masked & near & (blocks.confidence >= blocks.param(NEIGHBOR.name))
        return base.unmask(blocks, *base.with_fallback(blocks, anchors | neighbors, base.confidence_metric(blocks)))

"""`factor`: unmasks more positions the higher their confidence is.

See docs/research/decoding-rules.md#algorithm-factor.
"""

from __future__ import annotations

import torch

from runtime.algorithms import base
from runtime.request.field_spec import Field

FACTOR = Field(
    name="factor", default=1.0, high=1e6,
    help="n positions are unmasked at once if the confidence of each is at least 1 - factor / (n + 1)",
)  # fmt: skip


@base.register_algorithm
class Factor(base.RankedAlgorithm):
    key = "factor"
    fields = (FACTOR, base.METRIC, *base.COMMON)
    speed_accuracy_knob = base.SpeedAccuracyKnob(FACTOR, (0.5, 1, 1.25, 1.5, 2, 4))

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        """Unmasks positions in the order of METRIC, up to the first with less confidence than its rank requires."""
        scores = base.confidence_metric(blocks)
        position = base.score_order(scores, blocks.masked)
        conf = torch.empty_like(blocks.confidence).scatter_(1, position, blocks.confidence)  # in the order of the ranks
        n = torch.arange(1, position.shape[1] + 1, device=position.device)
        sure = (conf >= 1 - blocks.param("factor") / (n + 1)) & (n <= blocks.masked.sum(1, keepdim=True))
        count = sure.int().cumprod(1).sum(1, keepdim=True)
        return base.unmask(blocks, *base.with_fallback(blocks, blocks.masked & (position < count), scores))

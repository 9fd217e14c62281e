"""`fixed`: unmasks the step quota by confidence (docs/research/decoding-rules.md#algorithm-fixed)."""

from __future__ import annotations

from runtime.algorithms import base


@base.register_algorithm
class Fixed(base.RankedAlgorithm):
    key = "fixed"
    fields = (base.STEPS, base.REMAINDER, base.METRIC, *base.COMMON)
    speed_accuracy_knob = base.STEPS_KNOB

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        best = base.score_order(base.confidence_metric(blocks), blocks.masked) < base.tokens_per_step(blocks)[:, None]
        return base.unmask(blocks, blocks.masked & (best | blocks.at_step_limit()))

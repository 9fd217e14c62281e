"""`sequential`: unmasks the step quota from left to right (docs/research/decoding-rules.md#algorithm-sequential)."""

from __future__ import annotations

from runtime.algorithms import base


@base.register_algorithm
class Sequential(base.UnmaskingAlgorithm):
    key = "sequential"
    fields = (base.STEPS, *base.COMMON)
    speed_accuracy_knob = base.STEPS_KNOB

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        scores = -base.is_suppressed(blocks).float()  # otherwise equal, so the lower position is first
        first = base.score_order(scores, blocks.masked) < base.tokens_per_step(blocks)[:, None]
        return base.unmask(blocks, blocks.masked & (first | blocks.at_step_limit()))

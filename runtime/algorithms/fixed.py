"""`fixed`: unmasks the step quota by confidence (docs/research/decoding-rules.md#algorithm-fixed)."""

from __future__ import annotations

from runtime.algorithms.base import (
    COMMON,
    METRIC,
    STEPS,
    STEPS_KNOB,
    BlockBatch,
    BlockUpdate,
    RankedAlgorithm,
    confidence_metric,
    rank,
    register_algorithm,
    tokens_per_step,
    unmask,
)


@register_algorithm
class Fixed(RankedAlgorithm):
    key = "fixed"
    fields = (STEPS, METRIC, *COMMON)
    speed_accuracy_knob = STEPS_KNOB

    def decide(self, blocks: BlockBatch) -> BlockUpdate:
        best = rank(confidence_metric(blocks), blocks.masked) < tokens_per_step(blocks)[:, None]
        return unmask(blocks, blocks.masked & (best | blocks.at_step_limit()))

"""`sequential`: unmasks the step quota from left to right (docs/research/decoding-rules.md#algorithm-sequential)."""

from __future__ import annotations

from runtime.algorithms.base import (
    COMMON,
    STEPS,
    STEPS_KNOB,
    BlockBatch,
    BlockUpdate,
    UnmaskingAlgorithm,
    is_suppressed,
    rank,
    register_algorithm,
    tokens_per_step,
    unmask,
)


@register_algorithm
class Sequential(UnmaskingAlgorithm):
    key = "sequential"
    fields = (STEPS, *COMMON)
    speed_accuracy_knob = STEPS_KNOB

    def decide(self, blocks: BlockBatch) -> BlockUpdate:
        first = rank(-is_suppressed(blocks).float(), blocks.masked) < tokens_per_step(blocks)[:, None]
        return unmask(blocks, blocks.masked & (first | blocks.at_step_limit()))

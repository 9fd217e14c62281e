"""`dynamic`: unmasks confident positions, at least the step quota.

See docs/research/decoding-rules.md#algorithm-dynamic.
"""

from __future__ import annotations

from runtime.algorithms.base import (
    ACCEPT,
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
class Dynamic(RankedAlgorithm):
    key = "dynamic"
    fields = (ACCEPT, STEPS, METRIC, *COMMON)
    speed_accuracy_knob = STEPS_KNOB

    def decide(self, blocks: BlockBatch) -> BlockUpdate:
        """Returns the update. A block that is not allowed to force unmasks nothing."""
        count = tokens_per_step(blocks)
        confident = blocks.masked & (blocks.confidence > blocks.param(ACCEPT.name))
        enough = (confident.sum(1) >= count)[:, None]
        best = blocks.masked & (rank(confidence_metric(blocks), blocks.masked) < count[:, None])
        accepted = ((confident & enough) | (best & ~enough)) & blocks.may_force[:, None]
        forced = blocks.may_force & blocks.masked.any(1) & ~confident.any(1)
        return unmask(blocks, accepted | (blocks.masked & blocks.at_step_limit()), forced)

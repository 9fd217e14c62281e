"""`dynamic`: unmasks confident positions, at least the step quota.

See docs/research/decoding-rules.md#algorithm-dynamic.
"""

from __future__ import annotations

from runtime.algorithms import base


@base.register_algorithm
class Dynamic(base.RankedAlgorithm):
    key = "dynamic"
    fields = (base.ACCEPT, base.STEPS, base.METRIC, *base.COMMON)
    speed_accuracy_knob = base.STEPS_KNOB

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        """Returns the update. Without `must_advance` a block unmasks nothing."""
        count = base.tokens_per_step(blocks)
        confident = blocks.masked & (blocks.confidence > blocks.param(base.ACCEPT.name))
        enough = (confident.sum(1) >= count)[:, None]
        best = blocks.masked & (base.score_order(base.confidence_metric(blocks), blocks.masked) < count[:, None])
        accepted = ((confident & enough) | (best & ~enough)) & blocks.must_advance[:, None]
        forced = blocks.must_advance & blocks.masked.any(1) & ~confident.any(1)
        return base.unmask(blocks, accepted | (blocks.masked & blocks.at_step_limit()), forced)

"""`hierarchical`: unmasks the best of each run of masks.

See docs/research/decoding-rules.md#algorithm-hierarchical; dInfer.
"""

from __future__ import annotations

import torch

from runtime.algorithms import base
from runtime.request.field_spec import fraction_field

LOW = fraction_field("low_threshold", 0.4, "confidence above which the best position of a run of masks is unmasked")


@base.register_algorithm
class Hierarchical(base.RankedAlgorithm):
    key = "hierarchical"
    fields = (base.ACCEPT, LOW, base.METRIC, *base.COMMON)
    speed_accuracy_knob = base.SpeedAccuracyKnob(LOW, (0.9, 0.7, 0.6, 0.5, 0.3, 0.1))

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        scores = base.confidence_metric(blocks)
        best = _best_of_runs(blocks.masked, scores) & (blocks.confidence > blocks.param(LOW.name))
        confident = blocks.masked & (blocks.confidence > blocks.param(base.ACCEPT.name))
        return base.unmask(blocks, *base.with_fallback(blocks, best | confident, scores))


def _best_of_runs(masked: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Returns the position of the highest score in each run of masks, bool [n, B]; of equal ones, the first."""
    run = (~masked).cumsum(1)  # masks with an equal number of other positions before them are one run
    same_run = masked[:, :, None] & masked[:, None, :] & (run[:, :, None] == run[:, None, :])
    at = torch.arange(masked.shape[1], device=masked.device)
    own, other = scores[:, :, None], scores[:, None, :]
    before = (other > own) | ((other == own) & (at < at[:, None]))
    return masked & ~(same_run & before).any(2)

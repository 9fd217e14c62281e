"""`hierarchical`: takes the best of each run of masks (docs/decoding-rules.md#algorithm-hierarchical; dInfer)."""

from __future__ import annotations

import torch

from runtime.algorithms.base import BlockBatch, Decision, Tradeoff, register_rule
from runtime.algorithms.common import ACCEPT, COMMON, METRIC, RankedRule, filling, or_best, order
from runtime.request.field_spec import share

LOW = share("low_threshold", 0.4, "confidence above which the best position of a run of masks is taken")


@register_rule
class Hierarchical(RankedRule):
    key = "hierarchical"
    fields = (ACCEPT, LOW, METRIC, *COMMON)
    tradeoff = Tradeoff(LOW, (0.9, 0.7, 0.6, 0.5, 0.3, 0.1))

    def decide(self, blocks: BlockBatch) -> Decision:
        by = order(blocks)
        best = _best_of_runs(blocks.masked, by) & (blocks.conf > blocks.param(LOW.name))
        confident = blocks.masked & (blocks.conf > blocks.param(ACCEPT.name))
        return filling(blocks, *or_best(blocks, best | confident, by))


def _best_of_runs(masked: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """bool [n, B]: of each contiguous run of masked positions the first in the order `by`; ties: the lowest."""
    run = (~masked).cumsum(1)  # masks with as many other positions before them are of one run
    together = masked[:, :, None] & masked[:, None, :] & (run[:, :, None] == run[:, None, :])
    at = torch.arange(masked.shape[1], device=masked.device)
    mine, other = by[:, :, None], by[:, None, :]
    before = (other > mine) | ((other == mine) & (at < at[:, None]))
    return masked & ~(together & before).any(2)

"""`entropy_bound`: bounds the entropy of a step (docs/research/decoding-rules.md#algorithm-entropy_bound)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.algorithms import base
from runtime.request.field_spec import Field

BOUND = Field(
    name="entropy_bound", default=0.1, high=1e6,
    help="nats: positions are unmasked in order of rising entropy while the sum is within this bound",
)  # fmt: skip


@base.register_algorithm
class EntropyBound(base.UnmaskingAlgorithm):
    key = "entropy_bound"
    fields = (BOUND, *base.COMMON)
    speed_accuracy_knob = base.SpeedAccuracyKnob(BOUND, (0.1, 0.3, 1, 1.5, 2, 4))

    def algorithm_stats(self, values: Mapping[str, Any]) -> base.LogitStat:
        return base.LogitStat.ENTROPY

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        assert blocks.entropy is not None
        position = base.score_order(-blocks.entropy, blocks.masked)
        entropy = blocks.entropy.double().masked_fill(~blocks.masked, float("inf"))
        ascending = torch.empty_like(entropy).scatter_(1, position, entropy)
        count = (ascending.cumsum(1) <= blocks.param("entropy_bound")).sum(1, keepdim=True)
        return base.unmask(blocks, *base.with_fallback(blocks, blocks.masked & (position < count), -blocks.entropy))

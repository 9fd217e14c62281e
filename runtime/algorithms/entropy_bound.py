"""`entropy_bound`: bounds the entropy of a step (docs/decoding-rules.md#algorithm-entropy_bound)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.algorithms.base import BlockBatch, Decision, Rule, Stat, Tradeoff, register_rule
from runtime.algorithms.common import COMMON, filling, or_best, rank
from runtime.request.field_spec import Field

BOUND = Field(
    name="entropy_bound", default=0.1, high=1e6,
    help="nats: positions are taken from the lowest entropy up while the sum stays within it",
)  # fmt: skip


@register_rule
class EntropyBound(Rule):
    key = "entropy_bound"
    fields = (BOUND, *COMMON)
    tradeoff = Tradeoff(BOUND, (0.1, 0.3, 1, 1.5, 2, 4))

    def wants(self, values: Mapping[str, Any]) -> Stat:
        return Stat.ENTROPY

    def decide(self, blocks: BlockBatch) -> Decision:
        assert blocks.entropy is not None
        place = rank(-blocks.entropy, blocks.masked)
        entropy = blocks.entropy.double().masked_fill(~blocks.masked, float("inf"))
        rising = torch.empty_like(entropy).scatter_(1, place, entropy)
        count = (rising.cumsum(1) <= blocks.param("entropy_bound")).sum(1, keepdim=True)
        return filling(blocks, *or_best(blocks, blocks.masked & (place < count), -blocks.entropy))

"""`threshold`: takes confident positions (docs/decoding-rules.md#algorithm-threshold), and masks others again.

docs/decoding-rules.md#remasking states when a position is masked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.algorithms.base import BlockBatch, Decision, Stat, register_rule
from runtime.algorithms.common import (
    ACCEPT,
    BY_THRESHOLD,
    COMMON,
    MAX_STEPS,
    METRIC,
    RankedRule,
    accept_or_force,
    filling,
)
from runtime.request.field_spec import Value, share

REMASK = share("remask_threshold", 0.0, "confidence below which a filled position is masked again, once", neutral=0)

MODES: dict[str, dict[str, Value]] = {
    "speed": {"accept_threshold": 0.7},
    "balanced": {"accept_threshold": 0.9},
    "quality": {"accept_threshold": 0.97},
}


@register_rule
class Threshold(RankedRule):
    key = "threshold"
    fields = (ACCEPT, REMASK, METRIC, *COMMON)
    tradeoff = BY_THRESHOLD
    modes = MODES
    walks = True
    plain = ACCEPT, MAX_STEPS

    def wants(self, values: Mapping[str, Any]) -> Stat:
        return super().wants(values) | (Stat.CURRENT if self.unstable(values) else Stat.NONE)

    def unstable(self, values: Mapping[str, Any]) -> bool:
        return bool(values["remask_threshold"] > 0)

    def decide(self, blocks: BlockBatch) -> Decision:
        accepted, forced = accept_or_force(blocks)
        if blocks.current is None:
            return filling(blocks, accepted, forced)
        remask_below = blocks.param("remask_threshold")
        past_cap = blocks.advanced[:, None] >= blocks.param("max_steps_per_block")
        remasked = (
            blocks.filled
            & (blocks.current < remask_below)  # never true at 0, where remasking is off
            & ~blocks.remasked
            & ~blocks.capped()
            & ~past_cap
        )
        decision = filling(blocks, accepted, forced)
        masked = decision.masked | remasked
        return replace(decision, masked=masked, remasked=remasked, ended=~masked.any(1) & (remask_below[:, 0] <= 0))

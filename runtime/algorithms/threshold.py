"""`threshold`: unmasks confident positions (docs/research/decoding-rules.md#algorithm-threshold), and remasks others.

docs/research/decoding-rules.md#remasking states when a position is remasked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.algorithms import base
from runtime.request.field_spec import Value, fraction_field

REMASK = fraction_field(
    "remask_threshold", 0.0, "confidence below which an unmasked position is masked again, once", neutral=0
)

MODES: dict[str, dict[str, Value]] = {
    "speed": {"accept_threshold": 0.7},
    "balanced": {"accept_threshold": 0.9},
    "quality": {"accept_threshold": 0.97},
}


@base.register_algorithm
class Threshold(base.RankedAlgorithm):
    key = "threshold"
    fields = (base.ACCEPT, REMASK, base.METRIC, *base.COMMON)
    speed_accuracy_knob = base.THRESHOLD_KNOB
    modes = MODES
    supports_grammar = True
    fused_threshold = base.ACCEPT, base.MAX_STEPS

    def algorithm_stats(self, values: Mapping[str, Any]) -> base.LogitStat:
        stats = super().algorithm_stats(values)
        return stats | base.LogitStat.TOKEN_PROB if self.may_revise(values) else stats

    def may_revise(self, values: Mapping[str, Any]) -> bool:
        return bool(values["remask_threshold"] > 0)

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        accepted, forced = base.threshold_with_fallback(blocks)
        if blocks.token_prob is None:
            return base.unmask(blocks, accepted, forced)
        remask_below = blocks.param("remask_threshold")
        past_limit = blocks.num_steps[:, None] >= blocks.param("max_steps_per_block")
        remasked = (
            blocks.unmasked
            & (blocks.token_prob < remask_below)  # always false for 0, which disables remasking
            & ~blocks.remasked
            & ~blocks.at_step_limit()
            & ~past_limit
        )
        update = base.unmask(blocks, accepted, forced)
        masked = update.masked | remasked
        return replace(update, masked=masked, remasked=remasked, finished=~masked.any(1) & (remask_below[:, 0] <= 0))

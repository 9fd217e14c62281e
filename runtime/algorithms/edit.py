"""`edit`: unmasks, and replaces unmasked tokens until nothing changes.

See docs/research/decoding-rules.md#algorithm-edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from runtime.algorithms import base
from runtime.request.field_spec import Field, Value, fraction_field

EDIT = fraction_field("edit_threshold", 0.0, "confidence above which an unmasked token is replaced")
MAX_POST_EDIT = Field(
    name="max_post_edit_steps", kind="integer", default=16, high=2**31,
    help="maximum steps that edit a block without masks",
)  # fmt: skip
PENALTY = Field(name="penalty_lambda", default=0.0, neutral=0, help="penalty on repeating the previous token")

MODES: dict[str, dict[str, Value]] = {
    "speed": {"accept_threshold": 0.5, "edit_threshold": 0.0},
    "balanced": {"accept_threshold": 0.6, "edit_threshold": 0.3},
    "quality": {"accept_threshold": 0.7, "edit_threshold": 0.5},
}


@base.register_algorithm
class Edit(base.UnmaskingAlgorithm):
    key = "edit"
    fields: ClassVar[tuple[Field, ...]] = (base.ACCEPT, EDIT, MAX_POST_EDIT, PENALTY, *base.COMMON)
    speed_accuracy_knob = base.THRESHOLD_KNOB
    modes = MODES
    edits = True

    def algorithm_stats(self, values: Mapping[str, Any]) -> base.LogitStat:
        return base.LogitStat.PROCESS_LOGITS if values["penalty_lambda"] > 0 else base.LogitStat.NONE

    def process_logits(self, logits: torch.Tensor, rows: base.SampledRows) -> None:
        """Subtracts the penalty from the logit of the previous token of the block, unless that position is masked."""
        penalty = rows.value("penalty_lambda")
        previous = (rows.offset - 1).clamp(min=0)
        applies = (rows.offset > 0) & ~rows.masked[rows.block, previous] & (penalty > 0)
        ids = rows.tokens[rows.block, previous].clamp(max=rows.logits_ops.vocab_size(logits) - 1)
        decrease = torch.where(applies, penalty, 0).to(logits.dtype)
        rows.logits_ops.scatter_add(logits, ids[:, None], -decrease[:, None])

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        accepted, forced = base.threshold_with_fallback(blocks)
        began_full = ~blocks.masked.any(1)
        out_of_steps = began_full & (blocks.post_edit_steps >= blocks.value("max_post_edit_steps"))
        edited = (
            blocks.unmasked
            & (blocks.confidence > blocks.param("edit_threshold"))
            & (blocks.candidates != blocks.tokens)
            & ~out_of_steps[:, None]
        )
        return base.BlockUpdate(
            tokens=torch.where(accepted | edited, blocks.candidates, blocks.tokens),
            masked=blocks.masked & ~accepted,
            forced=forced,
            edited=edited,
            remasked=torch.zeros_like(edited),
            finished=began_full & (out_of_steps | ~edited.any(1)),
        )

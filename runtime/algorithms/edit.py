"""`edit`: fills masks and replaces filled tokens until nothing changes (docs/decoding-rules.md#algorithm-edit)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from runtime.algorithms.base import BlockBatch, Decision, Rows, Rule, Stat, register_rule
from runtime.algorithms.common import ACCEPT, BY_THRESHOLD, COMMON, accept_or_force
from runtime.request.field_spec import Field, Value, share

EDIT = share("edit_threshold", 0.0, "confidence above which a filled token is replaced")
MAX_POST_EDIT = Field(
    name="max_post_edit_steps", kind="integer", default=16, high=2**31,
    help="steps a block may go on being edited once it is full",
)  # fmt: skip
PENALTY = Field(name="penalty_lambda", default=0.0, neutral=0, help="penalty on repeating the token before")

MODES: dict[str, dict[str, Value]] = {
    "speed": {"accept_threshold": 0.5, "edit_threshold": 0.0},
    "balanced": {"accept_threshold": 0.6, "edit_threshold": 0.3},
    "quality": {"accept_threshold": 0.7, "edit_threshold": 0.5},
}


@register_rule
class Edit(Rule):
    key = "edit"
    fields: ClassVar[tuple[Field, ...]] = (ACCEPT, EDIT, MAX_POST_EDIT, PENALTY, *COMMON)
    tradeoff = BY_THRESHOLD
    modes = MODES
    edits = True

    def wants(self, values: Mapping[str, Any]) -> Stat:
        return Stat.ADJUST if values["penalty_lambda"] > 0 else Stat.NONE

    def adjust(self, logits: torch.Tensor, rows: Rows) -> None:
        """Rows but a block's first lose the penalty on the token before them, unless that is masked."""
        penalty = rows.value("penalty_lambda")
        previous = (rows.at - 1).clamp(min=0)
        applies = (rows.at > 0) & ~rows.masked[rows.block, previous] & (penalty > 0)
        ids = rows.tokens[rows.block, previous].clamp(max=rows.vocabulary.size(logits) - 1)
        lost = torch.where(applies, penalty, 0).to(logits.dtype)
        rows.vocabulary.add(logits, ids[:, None], -lost[:, None])

    def decide(self, blocks: BlockBatch) -> Decision:
        accepted, forced = accept_or_force(blocks)
        began_full = ~blocks.masked.any(1)
        out_of_steps = began_full & (blocks.post_edit_steps >= blocks.value("max_post_edit_steps"))
        edited = (
            blocks.filled
            & (blocks.conf > blocks.param("edit_threshold"))
            & (blocks.choice != blocks.tokens)
            & ~out_of_steps[:, None]
        )
        return Decision(
            tokens=torch.where(accepted | edited, blocks.choice, blocks.tokens),
            masked=blocks.masked & ~accepted,
            forced=forced,
            edited=edited,
            remasked=torch.zeros_like(edited),
            ended=began_full & (out_of_steps | ~edited.any(1)),
        )

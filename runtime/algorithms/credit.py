"""`credit`: raises logits of repeated candidates (docs/decoding-rules.md#algorithm-credit; dInfer)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.algorithms.base import BlockBatch, Decision, Rows, Stat, register_rule
from runtime.algorithms.common import ACCEPT, BY_THRESHOLD, COMMON, METRIC, RankedRule, accept_or_force, filling
from runtime.request.field_spec import Field, share

WEIGHT = Field(name="credit.weight", default=0.7, high=100, help="what the logarithm of credit adds to a logit")
DECAY = share("credit.decay", 0.8, "what a step leaves of the credit before it")
POWER = Field(
    name="credit.power", default=0.2, high=100, help="a step credits its candidate with the probability to this power"
)


@register_rule
class Credit(RankedRule):
    key = "credit"
    fields = (ACCEPT, WEIGHT, DECAY, POWER, METRIC, *COMMON)
    tradeoff = BY_THRESHOLD
    keeps = ("token", "credit")

    def wants(self, values: Mapping[str, Any]) -> Stat:
        return super().wants(values) | Stat.ADJUST

    def adjust(self, logits: torch.Tensor, rows: Rows) -> None:
        """The likeliest token of each position gets credit, and credit of its tokens is added to their logits.

        A position has a record for each token that was its likeliest in some step, so that no credit is left out.
        """
        assert rows.kept is not None
        best = rows.vocabulary.greedy(logits)
        gain = best.conf.double() ** rows.value(POWER.name)
        token, credit = rows.kept[rows.block, rows.at].unbind(2)  # [rows, records], the last of them new
        credit = credit * rows.value(DECAY.name)[:, None]
        known = (token == best.token[:, None]) & (credit > 0)
        new = ~known.any(1)
        credit += known * gain[:, None]
        token[:, -1] = best.token
        credit[:, -1] = torch.where(new, gain, 0)
        token = torch.where(credit > 0, token, 0)
        rows.kept[rows.block, rows.at] = torch.stack([token, credit], 2)
        bonus = rows.value(WEIGHT.name)[:, None] * credit.log1p()
        rows.vocabulary.add(logits, token.long(), bonus.to(logits.dtype))  # what says nothing adds 0 to token 0

    def decide(self, blocks: BlockBatch) -> Decision:
        return filling(blocks, *accept_or_force(blocks))

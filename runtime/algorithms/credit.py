"""`credit`: raises logits of repeated candidates (docs/research/decoding-rules.md#algorithm-credit; dInfer)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.algorithms import base
from runtime.request.field_spec import Field, fraction_field

WEIGHT = Field(
    name="credit.weight", default=0.7, high=100, help="factor of log(1 + credit), which is added to the logit"
)
DECAY = fraction_field("credit.decay", 0.8, "factor of the credit of earlier steps")
POWER = Field(
    name="credit.power", default=0.2, high=100,
    help="the credit of a step is the probability of the candidate to this power",
)  # fmt: skip


@base.register_algorithm
class Credit(base.RankedAlgorithm):
    key = "credit"
    fields = (base.ACCEPT, WEIGHT, DECAY, POWER, base.METRIC, *base.COMMON)
    speed_accuracy_knob = base.THRESHOLD_KNOB
    history_fields = ("token", "credit")

    def algorithm_stats(self, values: Mapping[str, Any]) -> base.LogitStat:
        return super().algorithm_stats(values) | base.LogitStat.PROCESS_LOGITS

    def process_logits(self, logits: torch.Tensor, rows: base.SampledRows) -> None:
        """Gives credit to the argmax of each position, and adds the credit of all tokens to their logits.

        A position has one record for each token that was its argmax in some step.
        """
        assert rows.history is not None
        argmax = rows.logits_ops.greedy(logits)
        gain = argmax.confidence.double() ** rows.value(POWER.name)
        token, credit = rows.history[rows.block, rows.offset].unbind(2)  # [rows, records]; the last one is new
        credit = credit * rows.value(DECAY.name)[:, None]
        known = (token == argmax.token[:, None]) & (credit > 0)
        new = ~known.any(1)
        credit += known * gain[:, None]
        token[:, -1] = argmax.token
        credit[:, -1] = torch.where(new, gain, 0)
        token = torch.where(credit > 0, token, 0)
        rows.history[rows.block, rows.offset] = torch.stack([token, credit], 2)
        bonus = rows.value(WEIGHT.name)[:, None] * credit.log1p()
        rows.logits_ops.scatter_add(logits, token.long(), bonus.to(logits.dtype))  # empty records add 0 to token 0

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        return base.unmask(blocks, *base.threshold_with_fallback(blocks))

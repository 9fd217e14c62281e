"""Fields and helper functions that several unmasking algorithms use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.algorithms.base import (
    SUPPRESS_EOS,
    BlockBatch,
    BlockUpdate,
    LogitStat,
    SpeedAccuracyKnob,
    UnmaskingAlgorithm,
)
from runtime.request.field_spec import Field, fraction_field

ACCEPT = fraction_field("accept_threshold", 0.9, "confidence above which a masked position is unmasked")
THRESHOLD_KNOB = SpeedAccuracyKnob(ACCEPT, (0.99, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3))
MAX_STEPS = Field(
    name="max_steps_per_block", kind="integer", default=2, per_block=True, low=1, high=2**31,
    help="steps after which all positions of a block are unmasked; default twice the block size",
)  # fmt: skip
COMMON = (MAX_STEPS, SUPPRESS_EOS)  # fields of every algorithm that unmasks
STEPS = Field(
    name="steps", kind="integer", default=1, per_block=True, low=1, high=2**31,
    help="steps per block; default one per position",
)  # fmt: skip
STEPS_KNOB = SpeedAccuracyKnob(STEPS, (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32))

METRIC = Field(
    name="confidence_metric", kind="choice", choices=("max_prob", "margin", "neg_entropy"), default="max_prob",
    neutral="max_prob", help="order of positions: by the probability of the candidate, the margin to the second "
    "token, or the negative entropy; thresholds always apply to the probability",
)  # fmt: skip


class RankedAlgorithm(UnmaskingAlgorithm):
    """An algorithm that ranks positions by the field METRIC, which is one of its fields."""

    def algorithm_stats(self, values: Mapping[str, Any]) -> LogitStat:
        return {"margin": LogitStat.MARGIN, "neg_entropy": LogitStat.ENTROPY}.get(values[METRIC.name], LogitStat.NONE)


def confidence_metric(blocks: BlockBatch) -> torch.Tensor:
    """Returns the value of each request's METRIC, float [n, B]. Positions are unmasked from the highest value down."""
    if METRIC.name not in blocks.columns:
        return blocks.confidence
    metric, scores = blocks.param(METRIC.name), blocks.confidence
    if blocks.margin is not None:
        scores = torch.where(metric == METRIC.choices.index("margin"), blocks.margin, scores)
    if blocks.entropy is not None:
        scores = torch.where(metric == METRIC.choices.index("neg_entropy"), -blocks.entropy, scores)
    return scores


def is_suppressed(blocks: BlockBatch) -> torch.Tensor:
    """Returns a bool [n, B]: SUPPRESS_EOS suppresses the candidate of the position."""
    return blocks.confidence == torch.finfo(blocks.confidence.dtype).min


def best_position(scores: torch.Tensor) -> torch.Tensor:
    """Returns a bool [n, B]: the position of the highest score of each block; of equal scores, the first."""
    return torch.nn.functional.one_hot(scores.argmax(dim=1), scores.shape[1]).bool()


def threshold_with_fallback(blocks: BlockBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Selects masked positions with a confidence above ACCEPT, with the fallback of `with_fallback`.

    Returns:
        accepted [n, B] and forced [n].
    """
    passed = blocks.masked & (blocks.confidence > blocks.param(ACCEPT.name))
    return with_fallback(blocks, passed, confidence_metric(blocks))


def with_fallback(blocks: BlockBatch, passed: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the best position of blocks where none passed and forcing is allowed, and all positions at the step limit.

    Args:
        passed: bool [n, B], positions that the algorithm selected.
        scores: float [n, B]; the best position has the highest score.

    Returns:
        accepted [n, B] and forced [n].
    """
    forced = blocks.may_force & blocks.masked.any(1) & ~passed.any(1)
    best = best_position(scores.masked_fill(~blocks.masked, float("-inf")))
    accepted = passed | (best & forced[:, None])
    return accepted | (blocks.masked & blocks.at_step_limit()), forced


def unmask(blocks: BlockBatch, accepted: torch.Tensor, forced: torch.Tensor | None = None) -> BlockUpdate:
    """Returns the update that only unmasks `accepted` [n, B]. A block is finished when it has no masks."""
    masked = blocks.masked & ~accepted
    nothing = torch.zeros_like(accepted)
    return BlockUpdate(
        tokens=torch.where(accepted, blocks.candidates, blocks.tokens),
        masked=masked,
        forced=torch.zeros_like(blocks.may_force) if forced is None else forced,
        edited=nothing,
        remasked=nothing,
        finished=~masked.any(1),
    )


def tokens_per_step(blocks: BlockBatch) -> torch.Tensor:
    """Returns the number of positions that this step unmasks, int64 [n]; 0 if the block is not allowed to force.

    The masks of a block are divided evenly between its steps. The remainder goes to the first steps.
    """
    masks = blocks.initial_masks
    steps = torch.where(blocks.step_budget > 0, blocks.step_budget, blocks.value(STEPS.name).long())
    steps = torch.minimum(steps, masks).clamp(min=1)
    count = masks // steps + (blocks.num_steps < masks % steps)
    return torch.where(blocks.may_force, count, torch.zeros_like(count))


def rank(scores: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """Returns the rank of each masked position by descending score, from 0; of equal scores, the lower position first.

    Args:
        scores: float [n, B].
        masked: bool [n, B].

    Returns:
        int64 [n, B]; all other positions rank last.
    """
    order = scores.masked_fill(~masked, float("-inf")).argsort(dim=1, descending=True, stable=True)
    ranks = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks)

"""Fields and decisions that several rules share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.algorithms.base import SUPPRESS_EOS, BlockBatch, Decision, Rule, Stat, Tradeoff
from runtime.request.field_spec import Field, share

ACCEPT = share("accept_threshold", 0.9, "confidence above which a masked position is taken")
BY_THRESHOLD = Tradeoff(ACCEPT, (0.99, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3))
MAX_STEPS = Field(
    name="max_steps_per_block", kind="integer", default=2, per_block=True, low=1, high=2**31,
    help="steps after which a block takes whatever it holds; default twice the block",
)  # fmt: skip
COMMON = (MAX_STEPS, SUPPRESS_EOS)  # of every rule that fills masks
STEPS = Field(
    name="steps", kind="integer", default=1, per_block=True, low=1, high=2**31,
    help="steps a block; default one a position",
)  # fmt: skip
BY_STEPS = Tradeoff(STEPS, (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32))

METRIC = Field(
    name="confidence_metric", kind="choice", choices=("max_prob", "margin", "neg_entropy"), default="max_prob",
    neutral="max_prob", help="what orders positions: the candidate's probability, the lead of the likeliest token, or "
    "the entropy, the lower the better; thresholds always look at the probability",
)  # fmt: skip


class RankedRule(Rule):
    """A rule that orders positions by METRIC, which is among its fields."""

    def wants(self, values: Mapping[str, Any]) -> Stat:
        return {"margin": Stat.MARGIN, "neg_entropy": Stat.ENTROPY}.get(values[METRIC.name], Stat.NONE)


def order(blocks: BlockBatch) -> torch.Tensor:
    """float [n, B]: the larger, the earlier a masked position's turn, by the METRIC of its request."""
    if METRIC.name not in blocks.columns:
        return blocks.conf
    metric, by = blocks.param(METRIC.name), blocks.conf
    if blocks.margin is not None:
        by = torch.where(metric == METRIC.choices.index("margin"), blocks.margin, by)
    if blocks.entropy is not None:
        by = torch.where(metric == METRIC.choices.index("neg_entropy"), -blocks.entropy, by)
    return by


def late(blocks: BlockBatch) -> torch.Tensor:
    """bool [n, B]: positions whose candidate SUPPRESS_EOS holds back."""
    return blocks.conf == torch.finfo(blocks.conf.dtype).min


def best_position(by: torch.Tensor) -> torch.Tensor:
    """bool [n, B]: the position of each row's largest value; ties go to the lowest position."""
    return torch.nn.functional.one_hot(by.argmax(dim=1), by.shape[1]).bool()


def accept_or_force(blocks: BlockBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Masked positions whose confidence is above the threshold; else, where the block may force, the best one.

    Returns accepted [n, B] and forced [n]. At the cap on steps every masked position is accepted.
    """
    return or_best(blocks, blocks.masked & (blocks.conf > blocks.param(ACCEPT.name)), order(blocks))


def or_best(blocks: BlockBatch, passed: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What passed [n, B]; where nothing did and the block may force, the first in the order `by`; at the cap, all.

    Returns accepted [n, B] and forced [n].
    """
    forced = blocks.may_force & blocks.masked.any(1) & ~passed.any(1)
    best = best_position(by.masked_fill(~blocks.masked, float("-inf")))
    accepted = passed | (best & forced[:, None])
    return accepted | (blocks.masked & blocks.capped()), forced


def filling(blocks: BlockBatch, accepted: torch.Tensor, forced: torch.Tensor | None = None) -> Decision:
    """The decision to fill `accepted` [n, B] and nothing else; a block ends when it is full."""
    masked = blocks.masked & ~accepted
    nothing = torch.zeros_like(accepted)
    return Decision(
        tokens=torch.where(accepted, blocks.choice, blocks.tokens),
        masked=masked,
        forced=torch.zeros_like(blocks.may_force) if forced is None else forced,
        edited=nothing,
        remasked=nothing,
        ended=~masked.any(1),
    )


def quota(blocks: BlockBatch) -> torch.Tensor:
    """int64 [n]: positions that this step takes so that the block's steps share its masks evenly, the remainder going
    to the first; 0 where the block may not force."""
    masks = blocks.initial_masks
    steps = torch.where(blocks.given_steps > 0, blocks.given_steps, blocks.value(STEPS.name).long())
    steps = torch.minimum(steps, masks).clamp(min=1)
    part = masks // steps + (blocks.advanced < masks % steps)
    return torch.where(blocks.may_force, part, torch.zeros_like(part))


def rank(by: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """int64 [n, B]: each masked position's place where `by` [n, B] descends, from 0; ties: the lower position."""
    places = by.masked_fill(~masked, float("-inf")).argsort(dim=1, descending=True, stable=True)
    numbers = torch.arange(places.shape[1], device=places.device).expand_as(places)
    return torch.empty_like(places).scatter_(1, places, numbers)

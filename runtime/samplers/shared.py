"""Fields and decisions that several rules share."""

from __future__ import annotations

import torch

from runtime.engine.description import Field, share
from runtime.samplers.base import BlockBatch, Decision

ACCEPT = share("accept_threshold", 0.9, "confidence above which a masked position is taken")
MAX_STEPS = Field(
    name="max_steps_per_block", kind="integer", default=2, per_block=True, low=1, high=2**31,
    help="steps after which a block takes whatever it holds; default twice the block",
)  # fmt: skip
STEPS = Field(
    name="steps", kind="integer", default=1, per_block=True, low=1, high=2**31,
    help="steps a block; default one a position",
)  # fmt: skip


def best_position(conf: torch.Tensor) -> torch.Tensor:
    """bool [n, B]: the position of each row's largest confidence; ties go to the lowest position."""
    return torch.nn.functional.one_hot(conf.argmax(dim=1), conf.shape[1]).bool()


def accept_or_force(blocks: BlockBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Masked positions whose confidence is above the threshold; else, where the block may force, the best one.

    Returns accepted [n, B] and forced [n]. At the cap on steps every masked position is accepted.
    """
    return or_best(blocks, blocks.masked & (blocks.conf > blocks.param(ACCEPT.name)))


def or_best(blocks: BlockBatch, passed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What passed [n, B]; where nothing did and the block may force, its best position; at the cap, all.

    Returns accepted [n, B] and forced [n].
    """
    forced = blocks.may_force & blocks.masked.any(1) & ~passed.any(1)
    conf = blocks.conf.masked_fill(~blocks.masked, float("-inf"))
    accepted = passed | (best_position(conf) & forced[:, None])
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
    """int64 [n]: positions that this step takes so that `steps` steps share a block's masks evenly, the remainder
    going to the first; 0 where the block may not force."""
    masks = blocks.initial_masks
    steps = torch.minimum(blocks.value(STEPS.name).long(), masks).clamp(min=1)
    part = masks // steps + (blocks.advanced < masks % steps)
    return torch.where(blocks.may_force, part, torch.zeros_like(part))


def rank(order: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """int64 [n, B]: each masked position's place where `order` [n, B] descends, from 0; ties: the lower position."""
    places = order.masked_fill(~masked, float("-inf")).argsort(dim=1, descending=True, stable=True)
    numbers = torch.arange(places.shape[1], device=places.device).expand_as(places)
    return torch.empty_like(places).scatter_(1, places, numbers)

"""What an acceptance rule sees and what it decides (decoding.md 3.1, 3.2). Tensors only: no request in sight."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.errors import ConfigError


class Param(enum.IntEnum):
    """Columns of a block's parameter row (float64, constant over the request's life)."""

    ACCEPT = 0
    EDIT = 1
    REMASK = 2
    PENALTY = 3
    MAX_POST_EDIT = 4
    MAX_STEPS = 5
    STEPS = 6
    TEMPERATURE = 7
    TOP_P = 8
    TOP_K = 9


@dataclass(frozen=True)
class BlockBatch:
    """`n` ACTIVE blocks of `B` positions that share a rule, as they were before this forward.

    `choice` and `conf` hold this step's candidate and its probability where a position was sampled; elsewhere the
    current token and -inf. `current` is the plain probability of a FILLED position's own token (1.0 if not needed).
    """

    tokens: torch.Tensor  # int64 [n, B]
    masked: torch.Tensor  # bool [n, B]
    filled: torch.Tensor  # bool [n, B]; neither masked nor filled: fixed
    choice: torch.Tensor  # int64 [n, B]
    conf: torch.Tensor  # float [n, B]
    current: torch.Tensor  # float [n, B]
    remasked: torch.Tensor  # bool [n, B], positions masked again once already
    may_force: torch.Tensor  # bool [n]
    advanced: torch.Tensor  # int64 [n], earlier steps in which the block might force
    initial_masks: torch.Tensor  # int64 [n]
    post_edit_steps: torch.Tensor  # int64 [n], earlier steps that began with no mask
    params: torch.Tensor  # float64 [n, len(Param)]

    def param(self, column: Param) -> torch.Tensor:
        """[n, 1], to compare with [n, B]."""
        return self.params[:, column, None]

    def capped(self) -> torch.Tensor:
        """bool [n, 1]: this step fills what is still masked (max_steps_per_block)."""
        return (self.may_force & (self.advanced + 1 >= self.params[:, Param.MAX_STEPS]))[:, None]


@dataclass(frozen=True)
class Decision:
    """What a rule decided: the blocks' content after this step, and what was done to them."""

    tokens: torch.Tensor  # int64 [n, B]
    masked: torch.Tensor  # bool [n, B]
    forced: torch.Tensor  # bool [n], nothing passed the threshold and the best was taken
    edited: torch.Tensor  # bool [n, B], FILLED positions that were replaced
    remasked: torch.Tensor  # bool [n, B], FILLED positions that were masked again
    ended: torch.Tensor  # bool [n], the content will not change any more


Rule = Callable[[BlockBatch], Decision]
_RULES: dict[str, Rule] = {}


def register_rule(key: str) -> Callable[[Rule], Rule]:
    """Make a rule selectable as ``decoding.algorithm``."""

    def add(rule: Rule) -> Rule:
        if key in _RULES:
            raise ValueError(f"acceptance rule {key!r} is registered twice")
        _RULES[key] = rule
        return rule

    return add


def rules() -> list[str]:
    return sorted(_RULES)


def get_rule(key: str) -> Rule:
    if key not in _RULES:
        raise ConfigError(f"acceptance rule {key!r} is not known; known: {', '.join(rules())}")
    return _RULES[key]


def best_position(conf: torch.Tensor) -> torch.Tensor:
    """bool [n, B]: the position of each row's largest confidence; ties go to the lowest position."""
    return torch.nn.functional.one_hot(conf.argmax(dim=1), conf.shape[1]).bool()


def accept_or_force(blocks: BlockBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Masked positions whose confidence is above the threshold; else, where the block may force, the best one.

    Returns accepted [n, B] and forced [n]. At the cap on steps every masked position is accepted.
    """
    accepted = blocks.masked & (blocks.conf > blocks.param(Param.ACCEPT))
    forced = blocks.may_force & blocks.masked.any(1) & ~accepted.any(1)
    conf = blocks.conf.masked_fill(~blocks.masked, float("-inf"))
    accepted = accepted | (best_position(conf) & forced[:, None])
    return accepted | (blocks.masked & blocks.capped()), forced

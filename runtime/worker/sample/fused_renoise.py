"""The head of a model that denoises noise, where kernels make everything of its product's logits in one go."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from runtime.algorithms.base import Rows, Stat
from runtime.kernels.fused_softmax_stats import Asked, Described
from runtime.layers.lm_head import CappedHead
from runtime.worker.input_batch import SampleShape
from runtime.worker.sample.algorithm_groups import Given, Group, Place

NEEDED = Stat.ADJUST | Stat.ENTROPY
KNOWN = NEEDED | Stat.BEST | Stat.SIGNAL


def noise_alone(shape: SampleShape, groups: list[Group]) -> bool:
    """Whether a step's blocks are all of one noisy rule, that wants no more than there is a kernel for."""
    (group, *others) = groups
    wants = group.wants
    fits = group.rule.noisy and wants & NEEDED == NEEDED and not wants & ~KNOWN
    return fits and not others and not group.shape.limited and shape.rows > 0


def described(
    head: CappedHead,
    group: Group,
    hidden: torch.Tensor,
    given: Given,
    seen: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    most: int,
    mask_id: int | None,
    max_token_id: int,
    softens: bool,
    fixed: bool,
) -> Iterator[tuple[Place, Described]]:
    """Of at most `most` sampled rows at a time: where they are, and what became of their logits. `hidden`: of all of
    them. `seen`: all blocks' tokens, masked positions and steps. `softens`: the distributions are wanted."""
    assert head.kernels.describe is not None
    block, at = given["block"], given["at"]
    uniform = None
    if group.shape.drawn:  # the last rows
        uniform = torch.full((len(hidden),), -1.0, dtype=torch.float64, device=hidden.device)
        uniform[len(hidden) - group.shape.drawn :] = given["uniform"]
    for start in range(0, len(hidden), most):
        part = slice(start, start + most)
        own: Rows = group.seen((group.own[part], at[part]), *seen, fixed=fixed)
        asked = Asked(
            heat=group.rule.heat(own), uniform=None if uniform is None else uniform[part], cap=head.cap,
            mask_id=mask_id, max_token_id=max_token_id, probs=hidden.dtype if softens else None,
        )  # fmt: skip
        yield (block[part], at[part]), head.kernels.describe(head.raw(hidden[part]), asked)

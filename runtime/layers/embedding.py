"""Token embeddings, and embeddings that are made of several tokens'."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from runtime.layers.layer_factory import Build, Calls


class Embedding(nn.Module):
    """int64 ids [rows] -> [rows, hidden]; unfilled."""

    __call__: Calls[[torch.Tensor], torch.Tensor]

    def __init__(self, build: Build, vocab_size: int, hidden: int) -> None:
        super().__init__()
        self.weight = build.table(vocab_size, hidden)
        self.ids = build.ids(vocab_size)
        self.kernels = build.kernels

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.ids is None:
            return self.weight.rows(ids)
        at, here = self.ids.at(ids)
        return self.ids.group.all_reduce(self.weight.rows(at).mul_(here[:, None]))

    def mean(self, probs: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
        """[n, ids that are here] -> [n, hidden], the mean embedding under each distribution.

        See ``kernels.weighted_embedding``.
        """
        mine = self.kernels.mean(probs, self.weight.tensor, divisor)
        return mine if self.ids is None else self.ids.group.all_reduce(mine)


def merged(
    embed: Callable[[torch.Tensor], torch.Tensor],
    own: torch.Tensor,
    ids: torch.Tensor,
    probs: torch.Tensor,
    mask_id: int,
    *,
    smooth: torch.Tensor,
    weight: torch.Tensor,
    renormalize: torch.Tensor,
) -> torch.Tensor:
    """Returns input embeddings that replace `own`, those of the tokens: [rows, hidden] of its dtype.

    docs/decoding-rules.md#soft-embeddings has the formulas. `smooth` selects `iter_smooth_topk` instead of `dmax_topk`.

    Args:
        embed: int64 ids [rows] -> [rows, hidden]. ids, probs: [rows, count]; a probability of 0 takes no part.
        smooth, weight, renormalize: [rows], each row's own.
    """
    wide = torch.promote_types(own.dtype, torch.float32)
    probs, weight = probs.to(wide), weight.to(wide)
    mixed, length = torch.zeros_like(own, dtype=wide), torch.zeros_like(probs[:, :1])
    held = torch.zeros_like(length)
    for id, prob in zip(ids.unbind(1), torch.split(probs, 1, 1), strict=True):  # one at a time: the rows may be many
        each = embed(id).to(wide)
        mixed += prob * each
        held += prob
        length += prob * each.norm(dim=1, keepdim=True)
    rest = (1 - held).clamp(min=0)
    mask = embed(ids.new_full((1,), mask_id)).to(wide)
    blend = mixed + rest * mask
    scale = (length + rest * mask.norm()) / (blend.norm(dim=1, keepdim=True) + 1e-6)
    blend = torch.where(renormalize[:, None], blend * scale, blend)
    return torch.where(smooth[:, None], own + weight[:, None] * mixed, blend).to(own.dtype)

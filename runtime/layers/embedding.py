"""Token embeddings and soft embeddings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from runtime.layers.layer_factory import ForwardCall, LayerFactory


class Embedding(nn.Module):
    """Maps int64 ids [rows] to embeddings [rows, hidden]. Uninitialized.

    With tensor parallelism, the table is sharded over the vocabulary.
    """

    __call__: ForwardCall[[torch.Tensor], torch.Tensor]

    def __init__(self, factory: LayerFactory, vocab_size: int, hidden: int) -> None:
        super().__init__()
        self.weight = factory.vocab_weight(vocab_size, hidden)
        self.vocab_shard = factory.vocab_shard(vocab_size)
        self.kernels = factory.kernels

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.vocab_shard is None:
            return self.weight.rows(ids)
        index, is_local = self.vocab_shard.local_index(ids)
        return self.vocab_shard.group.all_reduce(self.weight.rows(index).mul_(is_local[:, None]))

    def soft_embedding(self, probs: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the mean embedding under each distribution, [n, hidden]. See ``kernels.weighted_embedding``.

        Args:
            probs: [n, local ids].
        """
        partial = self.kernels.soft_embedding(probs, self.weight.tensor, divisor)
        return partial if self.vocab_shard is None else self.vocab_shard.group.all_reduce(partial)


def soft_token_embeddings(
    embed: Callable[[torch.Tensor], torch.Tensor], token_embeddings: torch.Tensor, ids: torch.Tensor,
    probs: torch.Tensor, mask_id: int, *, smooth: torch.Tensor, weight: torch.Tensor, renormalize: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Returns input embeddings that replace those of the tokens: [rows, hidden] of their dtype.

    docs/research/decoding-rules.md#soft-embeddings has the formulas. `smooth` selects `iter_smooth_topk` instead of
    `dmax_topk`.

    Args:
        embed: int64 ids [rows] -> [rows, hidden].
        token_embeddings: [rows, hidden], of the tokens.
        ids, probs: [rows, count]; a probability of 0 has no effect.
        smooth, weight, renormalize: [rows], one value per row.
    """
    wide = torch.promote_types(token_embeddings.dtype, torch.float32)
    probs, weight = probs.to(wide), weight.to(wide)
    mixed, length = torch.zeros_like(token_embeddings, dtype=wide), torch.zeros_like(probs[:, :1])
    total_prob = torch.zeros_like(length)
    for id, prob in zip(ids.unbind(1), torch.split(probs, 1, 1), strict=True):  # one at a time, to bound memory
        each = embed(id).to(wide)
        mixed += prob * each
        total_prob += prob
        length += prob * each.norm(dim=1, keepdim=True)
    rest = (1 - total_prob).clamp(min=0)
    mask = embed(ids.new_full((1,), mask_id)).to(wide)
    blend = mixed + rest * mask
    scale = (length + rest * mask.norm()) / (blend.norm(dim=1, keepdim=True) + 1e-6)
    blend = torch.where(renormalize[:, None], blend * scale, blend)
    return torch.where(smooth[:, None], token_embeddings + weight[:, None] * mixed, blend).to(token_embeddings.dtype)

"""Group-limited sigmoid routing with an expert bias that ranks and does not weigh (models.md 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RoutingRule:
    """`top_k` of the experts in the best `topk_group` of `n_group` groups; weights normalised to 1 where `normalise`,
    then times `scale`."""

    top_k: int
    n_group: int
    topk_group: int
    normalise: bool
    scale: float


def route_reference(
    logits: torch.Tensor, bias: torch.Tensor | None, rule: RoutingRule
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by sigmoid scores plus bias, and weigh them by their scores alone.

    Args:
        logits: [rows, experts], float32 or float64.
        bias: [experts] of the same dtype, or None.

    Returns:
        ids int32 [rows, top_k] and weights [rows, top_k] in logits' dtype, the best-ranked expert first.
    """
    scores = logits.sigmoid()
    ranks = scores if bias is None else scores + bias
    if rule.topk_group < rule.n_group:
        groups = ranks.unflatten(1, (rule.n_group, -1))
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        keep = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(rule.topk_group, dim=-1).indices, True)
        ranks = groups.masked_fill(~keep.unsqueeze(-1), float("-inf")).flatten(1)
    ids = ranks.topk(rule.top_k, dim=-1).indices
    weights = scores.gather(1, ids)
    if rule.normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids.to(torch.int32), weights * rule.scale

"""Selects the experts of each row and their weights.

Scores are a sigmoid or a softmax. The selection may use expert groups, a bias, or a pool of experts per block of rows.
The families are docs/models.md#llada2-layers, docs/models.md#llada22-expert-pool, docs/models.md#llada-moe-layers and
docs/models.md#diffusiongemma-layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from runtime.kernels.triton_import import tl, triton


@dataclass(frozen=True)
class RoutingRule:
    """`top_k` of the experts in the best `topk_group` of `n_group` groups; weights normalised to 1 where `normalise`,
    then times `scale`. Scores are each expert's own sigmoid, or the softmax over all of them. A bias is added to them
    for the ranking; `bias_weighs`: for the weights too. `capacity`: the rows of a block choose among so many experts,
    those that rank best in any of its rows (of equals the lower one); 0: among all. `block`: the most rows of one.
    `shared`: every row goes through one more expert, numbered after the others, as its last choice, with weight 1."""

    top_k: int
    n_group: int
    topk_group: int
    normalise: bool
    scale: float
    scores: Literal["sigmoid", "softmax"] = "sigmoid"
    bias_weighs: bool = False
    capacity: int = 0
    block: int = 0
    shared: bool = False

    @property
    def choices(self) -> int:
        return self.top_k + self.shared


def route_reference(
    logits: torch.Tensor, bias: torch.Tensor | None, rule: RoutingRule, first: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by scores plus bias, and weigh them by their scores alone (or, see the rule, by the sum).

    Args:
        logits: [rows, experts], float32 or float64; or [shares, rows, experts], whose sum it is.
        bias: [experts] of the same dtype, or None.
        first: int64 [rows], for a rule with a capacity: the first row of the block that a row belongs to. The rows of a
            block follow each other.

    Returns:
        ids int32 [rows, choices] and weights [rows, choices] in logits' dtype, the best-ranked expert first.
    """
    logits = logits.sum(0) if logits.dim() == 3 else logits
    scores = logits.softmax(-1) if rule.scores == "softmax" else logits.sigmoid()
    ranks = scores if bias is None else scores + bias
    if rule.capacity:
        assert first is not None
        best = torch.full_like(ranks, float("-inf")).scatter_reduce_(0, first[:, None].expand_as(ranks), ranks, "amax")
        pool = best.sort(dim=-1, descending=True, stable=True).indices[:, : rule.capacity]
        keep = torch.zeros_like(best, dtype=torch.bool).scatter_(1, pool, True)
        ranks = ranks.masked_fill(~keep[first], float("-inf"))
    if rule.topk_group < rule.n_group:
        groups = ranks.unflatten(1, (rule.n_group, -1))
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        keep = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(rule.topk_group, dim=-1).indices, True)
        ranks = groups.masked_fill(~keep.unsqueeze(-1), float("-inf")).flatten(1)
    ids = ranks.topk(rule.top_k, dim=-1).indices
    weights = (ranks if rule.bias_weighs else scores).gather(1, ids)
    if rule.normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * rule.scale
    if rule.shared:
        ids, weights = F.pad(ids, (0, 1), value=logits.shape[1]), F.pad(weights, (0, 1), value=1.0)
    return ids.to(torch.int32), weights


@triton.jit
def _summed(logits_ptr, rows, row, expert, ok, none, EXPERTS: tl.constexpr, SHARES: tl.constexpr):
    """A row's logits of `expert`, `none` where it is not `ok`."""
    at = row * EXPERTS + expert
    logits = tl.load(logits_ptr + at, mask=ok, other=none)
    for share in tl.static_range(1, SHARES):
        logits += tl.load(logits_ptr + share * rows.to(tl.int64) * EXPERTS + at, mask=ok, other=0.0)
    return logits


@triton.jit(do_not_specialize=["rows"])
def _pool(
    logits_ptr, bias_ptr, first_ptr, pool_ptr, rows,
    EXPERTS: tl.constexpr, EXPERTS_P2: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
    BIASED: tl.constexpr, SOFTMAX: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """One program a row; those of a block's first rows write 1 for each expert of its pool, the others return."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(first_ptr + row) == row:
        expert = tl.arange(0, EXPERTS_P2)
        ok = expert < EXPERTS
        bias = tl.zeros([EXPERTS_P2], tl.float32)
        if BIASED:
            bias += tl.load(bias_ptr + expert, mask=ok, other=0.0)
        best = tl.full([EXPERTS_P2], float("-inf"), tl.float32)
        for step in range(BLOCK):
            other = row + step
            mine = tl.load(first_ptr + other, mask=other < rows, other=-1) == row
            logits = _summed(logits_ptr, rows, other, expert, ok & mine, float("-inf"), EXPERTS, SHARES)
            if SOFTMAX:
                scores = tl.exp(logits - tl.max(tl.where(mine, logits, 0.0), 0))
                scores = scores / tl.sum(scores, 0)
            else:
                scores = tl.sigmoid(logits)
            best = tl.maximum(best, tl.where(ok & mine, scores + bias, float("-inf")))
        kept = tl.zeros([EXPERTS_P2], tl.int1)
        for _ in range(CAPACITY):
            chosen = expert == tl.argmax(best, 0)  # of equals the lowest expert
            kept = kept | chosen
            best = tl.where(chosen, float("-inf"), best)
        tl.store(pool_ptr + row * EXPERTS + expert, kept.to(tl.int8), mask=ok)


@triton.jit(do_not_specialize=["rows"])
def _route(
    logits_ptr, bias_ptr, first_ptr, pool_ptr, ids_ptr, weights_ptr, scale, rows,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, TOP_K: tl.constexpr,
    GROUPS_P2: tl.constexpr, SIZE_P2: tl.constexpr, TOP_P2: tl.constexpr,
    BIASED: tl.constexpr, BIAS_WEIGHS: tl.constexpr, NORMALISE: tl.constexpr, SOFTMAX: tl.constexpr,
    POOLED: tl.constexpr, SHARES: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """One program a row. Experts lie as [groups, experts of a group], padded to powers of two."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_P2)
    member = tl.arange(0, SIZE_P2)
    expert = group[:, None] * SIZE + member[None, :]
    ok = (group[:, None] < GROUPS) & (member[None, :] < SIZE)
    if SOFTMAX:
        logits = _summed(logits_ptr, rows, row, expert, ok, float("-inf"), EXPERTS, SHARES)
        scores = tl.exp(logits - tl.max(tl.max(logits, 1), 0))
        scores = scores / tl.sum(tl.sum(scores, 1), 0)
    else:
        scores = tl.sigmoid(_summed(logits_ptr, rows, row, expert, ok, 0.0, EXPERTS, SHARES))
    ranks = scores
    if BIASED:
        ranks += tl.load(bias_ptr + expert, mask=ok, other=0.0)
        if BIAS_WEIGHS:
            scores = ranks
    if POOLED:
        ok = ok & (tl.load(pool_ptr + tl.load(first_ptr + row) * EXPERTS + expert, mask=ok, other=0) != 0)
    ranks = tl.where(ok, ranks, float("-inf"))

    if KEPT < GROUPS:
        first = tl.max(ranks, 1)
        value = first
        if SIZE > 1:
            rest = tl.where(member[None, :] == tl.argmax(ranks, 1)[:, None], float("-inf"), ranks)
            value = first + tl.max(rest, 1)
        left = tl.where(group < GROUPS, value, float("-inf"))
        kept = tl.zeros([GROUPS_P2], tl.int1)
        for _ in tl.static_range(KEPT):
            chosen = group == tl.argmax(left, 0)
            kept = kept | chosen
            left = tl.where(chosen, float("-inf"), left)
        ranks = tl.where(kept[:, None], ranks, float("-inf"))

    ranks = tl.reshape(ranks, [GROUPS_P2 * SIZE_P2])
    scores = tl.reshape(scores, [GROUPS_P2 * SIZE_P2])
    expert = tl.reshape(expert, [GROUPS_P2 * SIZE_P2])
    lane = tl.arange(0, GROUPS_P2 * SIZE_P2)
    place = tl.arange(0, TOP_P2)
    ids = tl.zeros([TOP_P2], tl.int32)
    weights = tl.zeros([TOP_P2], tl.float32)
    for choice in tl.static_range(TOP_K):
        best = lane == tl.argmax(ranks, 0)  # of equals the lowest expert
        ids = tl.where(place == choice, tl.sum(tl.where(best, expert, 0), 0), ids)
        weights = tl.where(place == choice, tl.sum(tl.where(best, scores, 0.0), 0), weights)
        ranks = tl.where(best, float("-inf"), ranks)
    if NORMALISE:
        weights = weights / (tl.sum(weights, 0) + 1e-20)
    weights = weights * scale
    CHOICES: tl.constexpr = TOP_K + SHARED
    if SHARED:
        ids = tl.where(place == TOP_K, EXPERTS, ids)
        weights = tl.where(place == TOP_K, 1.0, weights)
    tl.store(ids_ptr + row * CHOICES + place, ids, mask=place < CHOICES)
    tl.store(weights_ptr + row * CHOICES + place, weights, mask=place < CHOICES)


def route(
    logits: torch.Tensor, bias: torch.Tensor | None, rule: RoutingRule, first: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`route_reference` for float32 logits on a GPU."""
    rows, experts = logits.shape[-2:]
    shares = len(logits) if logits.dim() == 3 else 1
    ids = torch.empty(rows, rule.choices, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, rule.choices, dtype=torch.float32, device=logits.device)
    given, pool = (logits if bias is None else bias), ids
    if rule.capacity:
        assert first is not None
        pool = torch.empty(rows, experts, dtype=torch.int8, device=logits.device)
        _pool[(rows,)](
            logits, given, first, pool, rows,
            EXPERTS=experts, EXPERTS_P2=triton.next_power_of_2(experts), CAPACITY=rule.capacity, BLOCK=rule.block,
            BIASED=bias is not None, SOFTMAX=rule.scores == "softmax", SHARES=shares, num_warps=1,
        )  # fmt: skip
    _route[(rows,)](
        logits, given, ids if first is None else first, pool, ids, weights, rule.scale, rows,
        EXPERTS=experts, GROUPS=rule.n_group, KEPT=rule.topk_group, TOP_K=rule.top_k,
        GROUPS_P2=triton.next_power_of_2(rule.n_group), SIZE_P2=triton.next_power_of_2(experts // rule.n_group),
        TOP_P2=triton.next_power_of_2(rule.choices), BIASED=bias is not None, BIAS_WEIGHS=rule.bias_weighs,
        NORMALISE=rule.normalise, SOFTMAX=rule.scores == "softmax", POOLED=rule.capacity > 0, SHARES=shares,
        SHARED=int(rule.shared), num_warps=1,
    )  # fmt: skip
    return ids, weights

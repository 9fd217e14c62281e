"""Router of a mixture of experts: the scores of the experts, their selection per row and their weights.

The GEMM multiplies rows by float32 weights on tensor cores, which have no float32. A float32 number is exactly the sum
of three bfloat16 numbers, and products of bfloat16 numbers are exact in float32. Only the summation rounds: the tensor
core accumulator loses bits per step, so it restarts every DEPTH inputs and is added up in float32. float32 rows are
split into three parts too; the three smallest of the nine products are below the rounding error and omitted. If a norm
computes the rows from bfloat16 ones, the kernel multiplies those, and the scores are scaled by the factors of the norm.

Scores are a sigmoid or a softmax. The selection may use expert groups, a bias, or a pool of experts per block of rows.
The families are docs/models/architecture-notes.md#llada2-layers, docs/models/architecture-notes.md#llada22-expert-pool,
docs/models/architecture-notes.md#llada-moe-layers and docs/models/architecture-notes.md#diffusiongemma-layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from runtime.kernels.common import tl, triton
from runtime.kernels.linear import batch_invariant_gemm

NUM_PARTS = 3
EXPERTS_PER_PROGRAM = 64  # the number of rows that tensor cores process at once
MANY_ROWS = 4096  # from this number of rows on, programs have twice as many experts
DEPTH = 64
TARGET_PROGRAMS = 256  # split-K until there are this many programs; more splits cost more to sum
MAX_SPLITS = 8
BATCH_INVARIANT_SPLITS = 4  # independent of the number of rows


def split_bf16x3(weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Splits float32 [experts, inputs] into [NUM_PARTS, experts, inputs] of `dtype`, the largest part first.

    Their sum is `weight`.
    """
    parts = []
    for _ in range(NUM_PARTS):
        parts.append(weight.to(dtype))
        weight = weight - parts[-1].to(weight.dtype)
    return torch.stack(parts)


def router_logits_reference(x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """Returns x [rows, inputs] @ weight [experts, inputs]^T in the weight's dtype, [rows, experts].

    `factor` [rows]: the factor of each row's logits, or None.
    """
    return apply_factor(F.linear(x.to(weight.dtype), weight), factor)


def apply_factor(logits: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    return logits if factor is None else logits * factor[:, None]


@triton.jit(do_not_specialize=["rows"])
def _router(
    x_ptr, parts_ptr, factor_ptr, out_ptr, rows,
    EXPERTS: tl.constexpr, INPUTS: tl.constexpr, SPLIT_SIZE: tl.constexpr, ROWS: tl.constexpr,
    EXPERTS_PER_PROGRAM: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Computes EXPERTS_PER_PROGRAM experts of ROWS rows over SPLIT_SIZE inputs per program.

    The output has the shape [splits, rows, experts].

    WIDE: rows are float32. SCALED: logits are multiplied by the factor of their row.
    """
    expert = tl.program_id(0) * EXPERTS_PER_PROGRAM + tl.arange(0, EXPERTS_PER_PROGRAM)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    depth = tl.arange(0, DEPTH)
    ok, expert_ok = row < rows, expert < EXPERTS
    x_at = x_ptr + row.to(tl.int64)[:, None] * INPUTS + depth[None, :]
    part_at = parts_ptr + expert[:, None] * INPUTS + depth[None, :]
    acc = tl.zeros([EXPERTS_PER_PROGRAM, ROWS], tl.float32)
    for step in range(0, SPLIT_SIZE, DEPTH):
        start = split * SPLIT_SIZE + step
        inside = (start + depth < INPUTS)[None, :]
        x = tl.trans(tl.load(x_at + start, mask=ok[:, None] & inside, other=0.0))
        weight_ok = expert_ok[:, None] & inside
        low = tl.load(part_at + 2 * EXPERTS * INPUTS + start, mask=weight_ok, other=0.0)
        middle = tl.load(part_at + EXPERTS * INPUTS + start, mask=weight_ok, other=0.0)
        high = tl.load(part_at + start, mask=weight_ok, other=0.0)
        if WIDE:
            first = x.to(high.dtype)
            x -= first.to(tl.float32)
            second = x.to(high.dtype)
            x -= second.to(tl.float32)
            partial = tl.dot(high, x.to(high.dtype), out_dtype=tl.float32)
            partial = tl.dot(middle, second, partial)
            partial = tl.dot(low, first, partial)
            partial = tl.dot(high, second, partial)
        else:
            first = x
            partial = tl.dot(low, first, out_dtype=tl.float32)
        partial = tl.dot(middle, first, partial)
        acc += tl.dot(high, first, partial)
    if SCALED:
        acc *= tl.load(factor_ptr + row, mask=ok, other=0.0)[None, :]
    at = out_ptr + (split * rows + row).to(tl.int64)[None, :] * EXPERTS + expert[:, None]
    tl.store(at, acc, mask=expert_ok[:, None] & ok[None, :])


def router_logits(
    x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None, *, batch_invariant: bool = False
) -> torch.Tensor:
    """Computes `router_logits_reference` on a GPU.

    Args:
        x: [rows, inputs] of the weight's dtype or float32.
        weight: float32 [experts, inputs], or its parts from `split_bf16x3`. With parts, the result has the shape
            [splits, rows, experts] and its sum over the splits is the logits.
        batch_invariant: bits do not depend on the number of rows.
    """
    if weight.dim() == 2:
        if batch_invariant:
            return apply_factor(batch_invariant_gemm(x.to(weight.dtype), weight), factor)
        return router_logits_reference(x, weight, factor)
    (rows, inputs), experts = x.shape, weight.shape[1]
    experts_per_program, row_tile, split_size = select_router_config(
        rows, inputs, experts, batch_invariant=batch_invariant
    )
    splits = triton.cdiv(inputs, split_size)
    out = x.new_empty(splits, rows, experts, dtype=torch.float32)
    wide = x.dtype != weight.dtype
    _router[(triton.cdiv(experts, experts_per_program), triton.cdiv(rows, row_tile), splits)](
        x, weight, out if factor is None else factor, out, rows, EXPERTS=experts, INPUTS=inputs, SPLIT_SIZE=split_size,
        ROWS=row_tile, EXPERTS_PER_PROGRAM=experts_per_program, DEPTH=DEPTH, WIDE=wide, SCALED=factor is not None,
        num_warps=4 * experts_per_program // EXPERTS_PER_PROGRAM, num_stages=2 if wide else 3,
    )  # fmt: skip
    return out


def select_router_config(
    rows: int, inputs: int, experts: int, *, batch_invariant: bool = False
) -> tuple[int, int, int]:
    """Returns experts per program, rows per program and inputs per split; the bits of the scores depend on the last."""
    if rows >= MANY_ROWS:
        experts_per_program, row_tile = 2 * EXPERTS_PER_PROGRAM, 128
    else:
        experts_per_program, row_tile = EXPERTS_PER_PROGRAM, min(64, max(16, triton.next_power_of_2(rows)))
    programs = triton.cdiv(experts, EXPERTS_PER_PROGRAM) * triton.cdiv(rows, row_tile)
    splits = BATCH_INVARIANT_SPLITS if batch_invariant else max(1, min(MAX_SPLITS, TARGET_PROGRAMS // programs))
    return experts_per_program, row_tile, triton.cdiv(triton.cdiv(inputs, DEPTH), splits) * DEPTH


@dataclass(frozen=True)
class RoutingConfig:
    """Selection of experts per row.

    Attributes:
        top_k: selected experts per row.
        n_group, topk_group: experts are selected from the best `topk_group` of `n_group` groups.
        normalize: normalize the weights to sum 1, before `scale`.
        scale: factor of the weights.
        score_fn: "sigmoid" of each logit, or "softmax" over all experts. A bias is added to the scores for the ranking.
        bias_in_weights: the bias counts for the weights too.
        capacity: size of the expert pool that the rows of a block share: the experts that rank best in any row of the
            block (the lower id of equals); 0 for no pool.
        block: maximum rows of a block.
        fused_shared_expert: append one more expert, with the id after the routed ones, as last choice with weight 1.
    """

    top_k: int
    n_group: int
    topk_group: int
    normalize: bool
    scale: float
    score_fn: Literal["sigmoid", "softmax"] = "sigmoid"
    bias_in_weights: bool = False
    capacity: int = 0
    block: int = 0
    fused_shared_expert: bool = False

    @property
    def num_choices(self) -> int:
        return self.top_k + self.fused_shared_expert


def select_experts_reference(
    logits: torch.Tensor, bias: torch.Tensor | None, config: RoutingConfig, first: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Selects experts by scores plus bias, and weights them by their scores (with `bias_in_weights`, by the sum).

    Args:
        logits: [rows, experts], float32 or float64; or split-K partial sums [splits, rows, experts].
        bias: [experts] of the same dtype, or None.
        first: int64 [rows], with a capacity: the first row of each row's block. The rows of a block are consecutive.

    Returns:
        ids int32 [rows, num_choices] and weights [rows, num_choices] in logits' dtype, the best-ranked expert first.
    """
    logits = logits.sum(0) if logits.dim() == 3 else logits
    scores = logits.softmax(-1) if config.score_fn == "softmax" else logits.sigmoid()
    ranks = scores if bias is None else scores + bias
    if config.capacity:
        assert first is not None
        best = torch.full_like(ranks, float("-inf")).scatter_reduce_(0, first[:, None].expand_as(ranks), ranks, "amax")
        pool = best.sort(dim=-1, descending=True, stable=True).indices[:, : config.capacity]
        keep = torch.zeros_like(best, dtype=torch.bool).scatter_(1, pool, True)
        ranks = ranks.masked_fill(~keep[first], float("-inf"))
    if config.topk_group < config.n_group:
        groups = ranks.unflatten(1, (config.n_group, -1))
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        keep = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(config.topk_group, dim=-1).indices, True)
        ranks = groups.masked_fill(~keep.unsqueeze(-1), float("-inf")).flatten(1)
    ids = ranks.topk(config.top_k, dim=-1).indices
    weights = (ranks if config.bias_in_weights else scores).gather(1, ids)
    if config.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * config.scale
    if config.fused_shared_expert:
        ids, weights = F.pad(ids, (0, 1), value=logits.shape[1]), F.pad(weights, (0, 1), value=1.0)
    return ids.to(torch.int32), weights


@triton.jit
def _load_logits(logits_ptr, rows, row, expert, ok, none, EXPERTS: tl.constexpr, SPLITS: tl.constexpr):
    """Loads the logits of a row's experts, summed over the splits; `none` where not `ok`."""
    at = row * EXPERTS + expert
    logits = tl.load(logits_ptr + at, mask=ok, other=none)
    for split in tl.static_range(1, SPLITS):
        logits += tl.load(logits_ptr + split * rows.to(tl.int64) * EXPERTS + at, mask=ok, other=0.0)
    return logits


@triton.jit(do_not_specialize=["rows"])
def _pool(
    logits_ptr, bias_ptr, first_ptr, pool_ptr, rows,
    EXPERTS: tl.constexpr, EXPERTS_P2: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
    BIASED: tl.constexpr, SOFTMAX: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Computes the expert pool of each block: stores 1 for each expert of the pool, and 0 for the others.

    There is one program per row. Only the program of a block's first row does work.
    """
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
            in_block = tl.load(first_ptr + other, mask=other < rows, other=-1) == row
            logits = _load_logits(logits_ptr, rows, other, expert, ok & in_block, float("-inf"), EXPERTS, SPLITS)
            if SOFTMAX:
                scores = tl.exp(logits - tl.max(tl.where(in_block, logits, 0.0), 0))
                scores = scores / tl.sum(scores, 0)
            else:
                scores = tl.sigmoid(logits)
            best = tl.maximum(best, tl.where(ok & in_block, scores + bias, float("-inf")))
        selected = tl.zeros([EXPERTS_P2], tl.int1)
        for _ in range(CAPACITY):
            chosen = expert == tl.argmax(best, 0)  # the lowest id of equal ranks
            selected = selected | chosen
            best = tl.where(chosen, float("-inf"), best)
        tl.store(pool_ptr + row * EXPERTS + expert, selected.to(tl.int8), mask=ok)


@triton.jit(do_not_specialize=["rows"])
def _select_experts(
    logits_ptr, bias_ptr, first_ptr, pool_ptr, ids_ptr, weights_ptr, scale, rows,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, TOPK_GROUP: tl.constexpr, TOP_K: tl.constexpr,
    GROUPS_P2: tl.constexpr, SIZE_P2: tl.constexpr, TOP_P2: tl.constexpr,
    BIASED: tl.constexpr, BIAS_IN_WEIGHTS: tl.constexpr, NORMALIZE: tl.constexpr, SOFTMAX: tl.constexpr,
    POOLED: tl.constexpr, SPLITS: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Selects the experts of one row per program. Layout: [groups, experts per group], padded to powers of two."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_P2)
    member = tl.arange(0, SIZE_P2)
    expert = group[:, None] * SIZE + member[None, :]
    ok = (group[:, None] < GROUPS) & (member[None, :] < SIZE)
    if SOFTMAX:
        logits = _load_logits(logits_ptr, rows, row, expert, ok, float("-inf"), EXPERTS, SPLITS)
        scores = tl.exp(logits - tl.max(tl.max(logits, 1), 0))
        scores = scores / tl.sum(tl.sum(scores, 1), 0)
    else:
        scores = tl.sigmoid(_load_logits(logits_ptr, rows, row, expert, ok, 0.0, EXPERTS, SPLITS))
    ranks = scores
    if BIASED:
        ranks += tl.load(bias_ptr + expert, mask=ok, other=0.0)
        if BIAS_IN_WEIGHTS:
            scores = ranks
    if POOLED:
        ok = ok & (tl.load(pool_ptr + tl.load(first_ptr + row) * EXPERTS + expert, mask=ok, other=0) != 0)
    ranks = tl.where(ok, ranks, float("-inf"))

    if TOPK_GROUP < GROUPS:
        first = tl.max(ranks, 1)
        value = first
        if SIZE > 1:
            rest = tl.where(member[None, :] == tl.argmax(ranks, 1)[:, None], float("-inf"), ranks)
            value = first + tl.max(rest, 1)
        remaining = tl.where(group < GROUPS, value, float("-inf"))
        selected = tl.zeros([GROUPS_P2], tl.int1)
        for _ in tl.static_range(TOPK_GROUP):
            chosen = group == tl.argmax(remaining, 0)
            selected = selected | chosen
            remaining = tl.where(chosen, float("-inf"), remaining)
        ranks = tl.where(selected[:, None], ranks, float("-inf"))

    ranks = tl.reshape(ranks, [GROUPS_P2 * SIZE_P2])
    scores = tl.reshape(scores, [GROUPS_P2 * SIZE_P2])
    expert = tl.reshape(expert, [GROUPS_P2 * SIZE_P2])
    flat = tl.arange(0, GROUPS_P2 * SIZE_P2)
    slot = tl.arange(0, TOP_P2)
    ids = tl.zeros([TOP_P2], tl.int32)
    weights = tl.zeros([TOP_P2], tl.float32)
    for choice in tl.static_range(TOP_K):
        best = flat == tl.argmax(ranks, 0)  # the lowest id of equal ranks
        ids = tl.where(slot == choice, tl.sum(tl.where(best, expert, 0), 0), ids)
        weights = tl.where(slot == choice, tl.sum(tl.where(best, scores, 0.0), 0), weights)
        ranks = tl.where(best, float("-inf"), ranks)
    if NORMALIZE:
        weights = weights / (tl.sum(weights, 0) + 1e-20)
    weights = weights * scale
    CHOICES: tl.constexpr = TOP_K + SHARED
    if SHARED:
        ids = tl.where(slot == TOP_K, EXPERTS, ids)
        weights = tl.where(slot == TOP_K, 1.0, weights)
    tl.store(ids_ptr + row * CHOICES + slot, ids, mask=slot < CHOICES)
    tl.store(weights_ptr + row * CHOICES + slot, weights, mask=slot < CHOICES)


def select_experts(
    logits: torch.Tensor, bias: torch.Tensor | None, config: RoutingConfig, first: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `select_experts_reference` for float32 logits on a GPU."""
    rows, experts = logits.shape[-2:]
    splits = len(logits) if logits.dim() == 3 else 1
    ids = torch.empty(rows, config.num_choices, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, config.num_choices, dtype=torch.float32, device=logits.device)
    bias_or_logits, pool = (logits if bias is None else bias), ids
    if config.capacity:
        assert first is not None
        pool = torch.empty(rows, experts, dtype=torch.int8, device=logits.device)
        _pool[(rows,)](
            logits, bias_or_logits, first, pool, rows,
            EXPERTS=experts, EXPERTS_P2=triton.next_power_of_2(experts), CAPACITY=config.capacity, BLOCK=config.block,
            BIASED=bias is not None, SOFTMAX=config.score_fn == "softmax", SPLITS=splits, num_warps=1,
        )  # fmt: skip
    _select_experts[(rows,)](
        logits, bias_or_logits, ids if first is None else first, pool, ids, weights, config.scale, rows,
        EXPERTS=experts, GROUPS=config.n_group, TOPK_GROUP=config.topk_group, TOP_K=config.top_k,
        GROUPS_P2=triton.next_power_of_2(config.n_group), SIZE_P2=triton.next_power_of_2(experts // config.n_group),
        TOP_P2=triton.next_power_of_2(config.num_choices), BIASED=bias is not None,
        BIAS_IN_WEIGHTS=config.bias_in_weights, NORMALIZE=config.normalize, SOFTMAX=config.score_fn == "softmax",
        POOLED=config.capacity > 0, SPLITS=splits, SHARED=int(config.fused_shared_expert), num_warps=1,
    )  # fmt: skip
    return ids, weights

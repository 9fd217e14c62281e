"""What a row's experts gave, weighted and summed; alone, or with what follows in a decoder: the residual's addition and
the next norm."""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.fp8 import LARGEST, LEAST, Fp8, beside, room, round_row
from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton


class Choices(NamedTuple):
    """What is summed by whoever reads it next."""

    pairs: torch.Tensor  # [rows * top_k, hidden], of row r's choice c at r * top_k + c; of dead ones anything
    ids: torch.Tensor  # int [rows, top_k], less than 0: dead
    weights: torch.Tensor  # wide [rows, top_k]
    scale: torch.Tensor  # wide [experts], that an expert's weights are multiplied by


def sum_reference(chosen: Choices) -> torch.Tensor:
    """-> [rows, hidden] of the pairs' dtype, summed in the order of their rank."""
    (rows, top_k), dtype = chosen.ids.shape, chosen.pairs.dtype
    weights = chosen.weights * chosen.scale[chosen.ids.clamp(min=0)]
    total = chosen.pairs.new_zeros(rows, chosen.pairs.shape[1], dtype=wide(dtype))
    for choice, each in enumerate(chosen.pairs.view(rows, top_k, -1).to(wide(dtype)).unbind(1)):
        total += torch.where(chosen.ids[:, choice, None] < 0, 0, weights[:, choice, None] * each)
    return total.to(dtype)


@triton.jit
def weighted_sum(
    pairs_ptr, ids_ptr, weights_ptr, scale_ptr, row, column, ok,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Float32 [COLUMNS] of one row, its choices in the order of their rank."""
    acc = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(TOP_K):
        expert = tl.load(ids_ptr + row * TOP_K + choice)
        alive = expert >= 0  # nothing was stored for a dead one
        value = tl.load(pairs_ptr + (row * TOP_K + choice) * HIDDEN + column, mask=ok & alive, other=0.0)
        weight = tl.load(weights_ptr + row * TOP_K + choice)
        if SCALED:
            weight *= tl.load(scale_ptr + expert, mask=alive, other=0.0)
        acc += weight * value.to(tl.float32)
    return acc


@triton.jit
def _sum_up(
    pairs_ptr, ids_ptr, weights_ptr, shared_ptr, residual_ptr, norm_ptr, out_ptr, sum_ptr, values_ptr, scales_ptr, eps,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SHARED: tl.constexpr, NORM: tl.constexpr,
    WEIGHTED: tl.constexpr, ROUNDED: tl.constexpr, LARGEST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS of one row, with NORM all of it."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < HIDDEN
    acc = weighted_sum(pairs_ptr, ids_ptr, weights_ptr, weights_ptr, row, column, ok, TOP_K, HIDDEN, COLUMNS, False)
    if SHARED:
        acc += tl.load(shared_ptr + row * HIDDEN + column, mask=ok, other=0.0).to(tl.float32)
    if NORM:
        acc += tl.load(residual_ptr + row * HIDDEN + column, mask=ok, other=0.0).to(tl.float32)
        total = acc.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * HIDDEN + column, total, mask=ok)
        acc = total.to(tl.float32)  # the norm sees the sum as it is kept
        acc = acc * (1.0 / tl.sqrt(tl.sum(acc * acc, 0) / HIDDEN + eps))
        if WEIGHTED:
            acc = acc * tl.load(norm_ptr + column, mask=ok, other=0.0).to(tl.float32)
    out = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * HIDDEN + column, out, mask=ok)
    if ROUNDED:
        values_at = values_ptr + row * HIDDEN + column
        round_row(out.to(tl.float32), values_at, scales_ptr + row, ok, LARGEST, LEAST)


def sum_up(
    pairs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """pairs [rows * top_k, hidden], of row r's choice c at r * top_k + c; -> [rows, hidden], in `out` if given."""
    (rows, top_k), hidden = ids.shape, pairs.shape[1]
    if out is None:
        out = pairs.new_empty(rows, hidden)
    slab = min(1024, triton.next_power_of_2(hidden))
    _sum_up[(rows, triton.cdiv(hidden, slab))](
        pairs, ids, weights, pairs if shared is None else shared, pairs, pairs, out, out, out, weights, 0.0,
        TOP_K=top_k, HIDDEN=hidden, COLUMNS=slab, SHARED=shared is not None, NORM=False, WEIGHTED=False, ROUNDED=False,
        LARGEST=LARGEST, LEAST=LEAST, num_warps=4,
    )  # fmt: skip
    return out


def sum_add_norm(
    pairs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None,
    residual: torch.Tensor, norm: torch.Tensor | None, eps: float, *, eight_bits: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`add_rms_norm_reference` of `sum_up` and `residual` [rows, hidden]; the sum is rounded once. `eight_bits`: with
    the normed rows `fp8.rounded` beside them."""
    (rows, top_k), hidden = ids.shape, pairs.shape[1]
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    made = room(out) if eight_bits else Fp8(out, weights)
    _sum_up[(rows, 1)](
        pairs, ids, weights, pairs if shared is None else shared, residual, pairs if norm is None else norm, out,
        total, made.values, made.scales, eps, TOP_K=top_k, HIDDEN=hidden, COLUMNS=triton.next_power_of_2(hidden),
        SHARED=shared is not None, NORM=True, WEIGHTED=norm is not None, ROUNDED=eight_bits, LARGEST=LARGEST,
        LEAST=LEAST, num_warps=8 if hidden > 2048 else 4,
    )  # fmt: skip
    return beside(out, made) if eight_bits else out, total

"""Weighted sum of the experts' outputs per row, alone or fused with the residual addition and the next RMSNorm."""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.common import add_residual, normed_row, tl, triton, wide
from runtime.kernels.quantized_tensor import FP8_MAX, MIN_SCALE, Fp8, attach_quantized, empty_fp8, store_quantized_row


class TopKOutputs(NamedTuple):
    """Outputs of the experts, to be summed by the consumer."""

    pairs: torch.Tensor  # [rows * top_k, hidden], choice c of row r at r * top_k + c; undefined for expert -1
    ids: torch.Tensor  # int [rows, top_k], < 0: no expert
    weights: torch.Tensor  # float32 or float64 [rows, top_k]
    scale: torch.Tensor  # float32 or float64 [experts], a factor of each expert's weights


def moe_sum_reference(outputs: TopKOutputs) -> torch.Tensor:
    """Returns [rows, hidden] in the dtype of the outputs, summed in the order of rank."""
    (rows, top_k), dtype = outputs.ids.shape, outputs.pairs.dtype
    weights = outputs.weights * outputs.scale[outputs.ids.clamp(min=0)]
    total = outputs.pairs.new_zeros(rows, outputs.pairs.shape[1], dtype=wide(dtype))
    for choice, expert_output in enumerate(outputs.pairs.view(rows, top_k, -1).to(wide(dtype)).unbind(1)):
        total += torch.where(outputs.ids[:, choice, None] < 0, 0, weights[:, choice, None] * expert_output)
    return total.to(dtype)


@triton.jit
def weighted_sum(
    pairs_ptr, ids_ptr, weights_ptr, scale_ptr, row, column, ok,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """float32 [COLUMNS] of one row, its experts in the order of rank."""
    acc = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(TOP_K):
        expert = tl.load(ids_ptr + row * TOP_K + choice)
        valid = expert >= 0  # nothing is stored for expert -1
        value = tl.load(pairs_ptr + (row * TOP_K + choice) * HIDDEN + column, mask=ok & valid, other=0.0)
        weight = tl.load(weights_ptr + row * TOP_K + choice)
        if SCALED:
            weight *= tl.load(scale_ptr + expert, mask=valid, other=0.0)
        acc += weight * value.to(tl.float32)
    return acc


@triton.jit
def _moe_sum(
    pairs_ptr, ids_ptr, weights_ptr, shared_ptr, residual_ptr, norm_ptr, out_ptr, sum_ptr, values_ptr, scales_ptr, eps,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SHARED: tl.constexpr, NORM: tl.constexpr,
    WEIGHTED: tl.constexpr, QUANTIZED: tl.constexpr, FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS of one row; with NORM the full row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < HIDDEN
    acc = weighted_sum(pairs_ptr, ids_ptr, weights_ptr, weights_ptr, row, column, ok, TOP_K, HIDDEN, COLUMNS, False)
    if SHARED:
        acc += tl.load(shared_ptr + row * HIDDEN + column, mask=ok, other=0.0).to(tl.float32)
    if NORM:
        acc = add_residual(acc, residual_ptr, sum_ptr, row * HIDDEN + column, ok)
        acc = normed_row(acc, norm_ptr, column, ok, eps, HIDDEN, WEIGHTED)
    out = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * HIDDEN + column, out, mask=ok)
    if QUANTIZED:
        values_at = values_ptr + row * HIDDEN + column
        store_quantized_row(out.to(tl.float32), values_at, scales_ptr + row, ok, FP8_MAX, MIN_SCALE)


def moe_sum(
    pairs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns [rows, hidden], in `out` if not None.

    Args:
        pairs: [rows * top_k, hidden], choice c of row r at r * top_k + c.
        shared: [rows, hidden] to add, or None.
    """
    (rows, top_k), hidden = ids.shape, pairs.shape[1]
    if out is None:
        out = pairs.new_empty(rows, hidden)
    slab = min(1024, triton.next_power_of_2(hidden))
    _moe_sum[(rows, triton.cdiv(hidden, slab))](
        pairs, ids, weights, pairs if shared is None else shared, pairs, pairs, out, out, out, weights, 0.0,
        TOP_K=top_k, HIDDEN=hidden, COLUMNS=slab, SHARED=shared is not None, NORM=False, WEIGHTED=False,
        QUANTIZED=False, FP8_MAX=FP8_MAX, MIN_SCALE=MIN_SCALE, num_warps=4,
    )  # fmt: skip
    return out


def moe_sum_add_norm(
    pairs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None,
    residual: torch.Tensor, norm: torch.Tensor | None, eps: float, *, quantize: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`add_rms_norm_reference` of the result of `moe_sum` and `residual` [rows, hidden]; the sum is rounded once.

    Args:
        quantize: attach the fp8 form to the normed rows.
    """
    (rows, top_k), hidden = ids.shape, pairs.shape[1]
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    quantized = empty_fp8(out) if quantize else Fp8(out, weights)
    _moe_sum[(rows, 1)](
        pairs, ids, weights, pairs if shared is None else shared, residual, pairs if norm is None else norm, out,
        total, quantized.values, quantized.scales, eps, TOP_K=top_k, HIDDEN=hidden,
        COLUMNS=triton.next_power_of_2(hidden), SHARED=shared is not None, NORM=True, WEIGHTED=norm is not None,
        QUANTIZED=quantize, FP8_MAX=FP8_MAX, MIN_SCALE=MIN_SCALE, num_warps=8 if hidden > 2048 else 4,
    )  # fmt: skip
    return attach_quantized(out, quantized) if quantize else out, total

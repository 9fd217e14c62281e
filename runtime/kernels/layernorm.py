"""RMSNorm: alone, and fused with the residual addition, quantization, the GEMM before it, or the sandwich norms.

`gemm_add_norm` uses split-K for few rows, which keeps all SMs busy. The norm kernel sums the partial results, so that
no extra launch is needed.

Sandwich norms (norms before and after each sublayer) are fused with the additions between them, one pass per row. One
kernel computes the inputs of the dense MLP and of the experts, the other combines their outputs. The latter can read
the experts' outputs before they are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation
from runtime.kernels.common import add_residual, normed_row, supports_tma, tl, triton, wide
from runtime.kernels.fused_moe.fused_moe import TopKOutputs, moe_sum_reference, weighted_sum
from runtime.kernels.quantized_tensor import FP8_MAX, MIN_SCALE, attach_quantized, empty_fp8, store_quantized_row


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Returns ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in x's dtype.

    It is computed in float32 or float64. `weight`: None for a norm without weights.
    """
    up = wide(x.dtype)
    return F.rms_norm(x.to(up), x.shape[-1:], None if weight is None else weight.to(up), eps).to(x.dtype)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (norm(x + residual), x + residual), both [rows, hidden] in x's dtype; the sum is rounded before the
    norm.
    """
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, eps, rows, SIZE: tl.constexpr, SIZE_P2: tl.constexpr,
    ADD: tl.constexpr, WEIGHTED: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Computes one row per program; x is the sum of SPLITS partial results."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE_P2)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        x += tl.load(x_ptr + split * rows.to(tl.int64) * SIZE + at, mask=ok, other=0.0)
    if ADD:
        x = add_residual(x, residual_ptr, sum_ptr, at, ok)
    x = normed_row(x, weight_ptr, column, ok, eps, SIZE, WEIGHTED)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=ok)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Computes `rms_norm_reference` for contiguous [rows, size] on a GPU."""
    out = torch.empty_like(x)
    _launch(x, x, weight, out, out, eps, add=False)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `add_rms_norm_reference` for contiguous [rows, size] on a GPU.

    Args:
        x: [rows, size], or float32 partial results [splits, rows, size], whose sum is not rounded before the addition.
    """
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    _launch(x, residual, weight, out, total, eps, add=True)
    return out, total


def _launch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor, total: torch.Tensor,
    eps: float, *, add: bool,
) -> None:  # fmt: skip
    rows, size = out.shape
    _rms_norm[(rows,)](
        x, residual, out if weight is None else weight, out, total, eps, rows,
        SIZE=size, SIZE_P2=triton.next_power_of_2(size), ADD=add, WEIGHTED=weight is not None,
        SPLITS=len(x) if x.dim() == 3 else 1, num_warps=8 if size > 2048 else 4,
    )  # fmt: skip


@triton.jit
def _rms_norm_quant(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, values_ptr, scales_ptr, eps, SIZE: tl.constexpr,
    SIZE_P2: tl.constexpr, ADD: tl.constexpr, WEIGHTED: tl.constexpr, FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """Computes `_rms_norm` of one row per program, and quantizes it."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    at, ok = row * SIZE + column, column < SIZE
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    if ADD:
        x = add_residual(x, residual_ptr, sum_ptr, at, ok)
    x = normed_row(x, weight_ptr, column, ok, eps, SIZE, WEIGHTED)
    out = x.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, mask=ok)
    store_quantized_row(out.to(tl.float32), values_ptr + at, scales_ptr + row, ok, FP8_MAX, MIN_SCALE)


def rms_norm_quant(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Computes `rms_norm`, and attaches the fp8 form to the output (``quantized_tensor.quantized_of``)."""
    out = torch.empty_like(x)
    return _launch_rms_norm(x, x, weight, out, out, eps, add=False)


def add_rms_norm_quant(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `add_rms_norm`, and attaches the fp8 form to the output."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    return _launch_rms_norm(x, residual, weight, out, total, eps, add=True), total


def _launch_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor, total: torch.Tensor,
    eps: float, *, add: bool,
) -> torch.Tensor:  # fmt: skip
    size, quantized = x.shape[1], empty_fp8(x)
    _rms_norm_quant[(len(x),)](
        x, residual, x if weight is None else weight, out, total, quantized.values, quantized.scales, eps, SIZE=size,
        SIZE_P2=triton.next_power_of_2(size), ADD=add, WEIGHTED=weight is not None, FP8_MAX=FP8_MAX,
        MIN_SCALE=MIN_SCALE, num_warps=8 if size > 2048 else 4,
    )  # fmt: skip
    return attach_quantized(out, quantized)


def reduce_add_norm_reference(
    ranks: tuple[torch.Tensor, ...], rows: slice, residual: torch.Tensor, weight: torch.Tensor | None, eps: float,
    total: torch.Tensor,
) -> None:  # fmt: skip
    """Computes `add_rms_norm_reference` of the sum of all ranks' partial results, for the rows that one rank reduces.

    The sum and the residual are rounded once, before the norm.

    Args:
        ranks: partial results of all ranks, each [rows, size]. Their `rows` are replaced by the normed rows.
        rows: the rows of this rank.
        residual: [rows, size]; its other rows are not read.
        total: [rows, size], receives the sum in `rows`.
    """
    up = wide(residual.dtype)
    summed = residual[rows].to(up)
    for partial in ranks:
        summed = summed + partial[rows].to(up)
    total[rows] = summed.to(total.dtype)
    normed = rms_norm_reference(total[rows], weight, eps)
    for partial in ranks:
        partial[rows] = normed


@triton.jit(do_not_specialize=["first"])
def _reduce_add_norm(
    ranks, residual_ptr, weight_ptr, sum_ptr, eps, first, SIZE: tl.constexpr, SIZE_P2: tl.constexpr,
    WEIGHTED: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """Computes one row per program, from row `first` on. `ranks`: a tuple of pointers."""
    at = (first + tl.program_id(0)).to(tl.int64) * SIZE + tl.arange(0, SIZE_P2)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    x = tl.zeros([SIZE_P2], tl.float32)
    for rank in tl.static_range(RANKS):
        x += tl.load(ranks[rank] + at, mask=ok, other=0.0).to(tl.float32)
    x = add_residual(x, residual_ptr, sum_ptr, at, ok)
    x = normed_row(x, weight_ptr, column, ok, eps, SIZE, WEIGHTED)
    for rank in tl.static_range(RANKS):
        tl.store(ranks[rank] + at, x.to(sum_ptr.dtype.element_ty), mask=ok)


def reduce_add_norm(
    ranks: tuple[torch.Tensor, ...], rows: slice, residual: torch.Tensor, weight: torch.Tensor | None, eps: float,
    total: torch.Tensor,
) -> None:  # fmt: skip
    """Computes `reduce_add_norm_reference` for contiguous rows that this GPU can access, summed in float32."""
    size = residual.shape[1]
    _reduce_add_norm[(rows.stop - rows.start,)](
        ranks, residual, residual if weight is None else weight, total, eps, rows.start, SIZE=size,
        SIZE_P2=triton.next_power_of_2(size), WEIGHTED=weight is not None, RANKS=len(ranks),
        num_warps=8 if size > 2048 else 4,
    )  # fmt: skip


SPLIT_K = 2
SPLIT_K_ROWS, SPLIT_K_INPUTS = 256, 8192  # split-K: at most this many rows, at least this many inputs
SMALL_GEMM_INPUTS = 2048  # split-K of a small GEMM: at least this many inputs
# A GEMM is small if it has at most FEW_ROWS rows, or at most NARROW_ROWS rows and NARROW_OUTPUTS outputs.
FEW_ROWS = 32
NARROW_ROWS, NARROW_OUTPUTS = 128, 2048


def gemm_add_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `add_rms_norm_reference` of x [rows, inputs] @ weight [outputs, inputs]^T and residual [rows, outputs].

    With split-K the GEMM's result is not rounded before the residual is added.
    """
    up = wide(x.dtype) if use_split_k(*x.shape, len(weight)) else x.dtype
    total = (F.linear(x.to(up), weight.to(up)) + residual.to(up)).to(x.dtype)
    return rms_norm_reference(total, norm, eps), total


def gemm_add_norm(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `gemm_add_norm_reference` for contiguous rows on a GPU; split-K from Hopper on."""
    rows, inputs = x.shape
    if not (supports_tma(x) and supports_tma(weight) and use_split_k(rows, inputs, len(weight))):
        return add_rms_norm(F.linear(x, weight), residual, norm, eps)
    x_splits, weight_splits = (each.unflatten(1, (SPLIT_K, -1)) for each in (x, weight))
    partial_sums = torch.bmm(x_splits.transpose(0, 1), weight_splits.permute(1, 2, 0), out_dtype=torch.float32)
    return add_rms_norm(partial_sums, residual, norm, eps)


def use_split_k(rows: int, inputs: int, outputs: int) -> bool:
    """Whether split-K is faster, measured on a Hopper GPU."""
    is_small = rows <= FEW_ROWS or (rows <= NARROW_ROWS and outputs <= NARROW_OUTPUTS)
    aligned = inputs % (8 * SPLIT_K) == 0  # each split starts at the alignment that the library GEMM needs
    return aligned and rows <= SPLIT_K_ROWS and inputs >= (SMALL_GEMM_INPUTS if is_small else SPLIT_K_INPUTS)


class NormOutputs(NamedTuple):
    """Results of `pre_mlp_norms`, [rows, size] except `factor`."""

    total: torch.Tensor  # the residual stream
    dense: torch.Tensor  # input of the dense MLP
    factor: torch.Tensor  # [rows], float32 or float64: the factor of the norm, for the router
    experts: torch.Tensor  # input of the experts


class SandwichNormOps(NamedTuple):
    """Fused norms of sandwich-norm layers, and the experts, whose outputs `post_mlp_norms` sums."""

    pre_mlp_norms: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float], NormOutputs]
    post_mlp_norms: Callable[
        [torch.Tensor, torch.Tensor | TopKOutputs, torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...], float],
        tuple[torch.Tensor, torch.Tensor],
    ]
    fused_experts: Callable[[torch.Tensor, torch.Tensor, Any, Any, Activation], torch.Tensor]


def pre_mlp_norms_reference(
    mixed: torch.Tensor, x: torch.Tensor, post_attention: torch.Tensor, dense: torch.Tensor, experts: torch.Tensor,
    eps: float,
) -> NormOutputs:  # fmt: skip
    """Returns ``x + norm(mixed) * post_attention``, its norm times `dense` and times `experts` [size], and the norm's
    factor.
    """
    total = x + rms_norm_reference(mixed, post_attention, eps)
    factor = (total.to(wide(total.dtype)).square().mean(-1) + eps).rsqrt()
    return NormOutputs(total, rms_norm_reference(total, dense, eps), factor, rms_norm_reference(total, experts, eps))


def post_mlp_norms_reference(
    dense: torch.Tensor, chosen: torch.Tensor | TopKOutputs, x: torch.Tensor, scale: torch.Tensor,
    weights: tuple[torch.Tensor, ...], eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Returns the norm of `total` times d, and ``total = (x + norm(norm(dense) * a + norm(chosen) * b) * c) * scale``.

    Args:
        dense: [rows, size], output of the dense MLP; chosen: that of the experts.
        scale: [rows, 1].
        weights: a, b, c and d, each [size].
    """
    a, b, c, d = weights
    if isinstance(chosen, TopKOutputs):
        chosen = moe_sum_reference(chosen)
    both = rms_norm_reference(dense, a, eps) + rms_norm_reference(chosen, b, eps)
    total = (x + rms_norm_reference(both, c, eps)) * scale
    return rms_norm_reference(total, d, eps), total


@triton.jit
def _pre_mlp_norms(
    mixed_ptr, x_ptr, post_attention_ptr, dense_ptr, experts_ptr, total_ptr, dense_out, factor_out, experts_out, eps,
    SIZE: tl.constexpr, SIZE_P2: tl.constexpr,
):  # fmt: skip
    """Computes one row per program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    at = row * SIZE + column
    mixed = tl.load(mixed_ptr + at, mask=ok, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    x += normed_row(mixed, post_attention_ptr, column, ok, eps, SIZE, True)
    total = x.to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + at, total, mask=ok)
    x = total.to(tl.float32)  # the norms' input is the rounded sum
    factor = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    tl.store(factor_out + row, factor)
    x = x * factor
    dense = x * tl.load(dense_ptr + column, mask=ok, other=0.0).to(tl.float32)
    tl.store(dense_out + at, dense.to(dense_out.dtype.element_ty), mask=ok)
    experts = x * tl.load(experts_ptr + column, mask=ok, other=0.0).to(tl.float32)
    tl.store(experts_out + at, experts.to(experts_out.dtype.element_ty), mask=ok)


@triton.jit
def _post_mlp_norms(
    dense_ptr, chosen_ptr, ids_ptr, weights_ptr, expert_scale_ptr, x_ptr, scale_ptr, a_ptr, b_ptr, c_ptr, d_ptr,
    out_ptr, total_ptr, eps, TOP_K: tl.constexpr, SIZE: tl.constexpr, SIZE_P2: tl.constexpr,
):  # fmt: skip
    """Computes one row per program. TOP_K: number of experts per row in `chosen`; 0 if they are summed already."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    at = row * SIZE + column
    dense = tl.load(dense_ptr + at, mask=ok, other=0.0).to(tl.float32)
    both = normed_row(dense, a_ptr, column, ok, eps, SIZE, True)
    if TOP_K:
        chosen = weighted_sum(
            chosen_ptr, ids_ptr, weights_ptr, expert_scale_ptr, row, column, ok, TOP_K, SIZE, SIZE_P2, True
        )
        chosen = chosen.to(chosen_ptr.dtype.element_ty).to(tl.float32)  # rounded as the separate kernel would store it
    else:
        chosen = tl.load(chosen_ptr + at, mask=ok, other=0.0).to(tl.float32)
    both += normed_row(chosen, b_ptr, column, ok, eps, SIZE, True)
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    x += normed_row(both, c_ptr, column, ok, eps, SIZE, True)
    total = (x * tl.load(scale_ptr + row).to(tl.float32)).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + at, total, mask=ok)
    out = normed_row(total.to(tl.float32), d_ptr, column, ok, eps, SIZE, True)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=ok)


SANDWICH_WARPS = 4


def pre_mlp_norms(
    mixed: torch.Tensor, x: torch.Tensor, post_attention: torch.Tensor, dense: torch.Tensor, experts: torch.Tensor,
    eps: float,
) -> NormOutputs:  # fmt: skip
    """Computes `pre_mlp_norms_reference` for contiguous rows on a GPU."""
    rows, size = x.shape
    factor = x.new_empty(rows, dtype=torch.float32)
    out = NormOutputs(torch.empty_like(x), torch.empty_like(x), factor, torch.empty_like(x))
    _pre_mlp_norms[(rows,)](
        mixed, x, post_attention, dense, experts, *out, eps, SIZE=size, SIZE_P2=triton.next_power_of_2(size),
        num_warps=SANDWICH_WARPS,
    )  # fmt: skip
    return out


def post_mlp_norms(
    dense: torch.Tensor, chosen: torch.Tensor | TopKOutputs, x: torch.Tensor, scale: torch.Tensor,
    weights: tuple[torch.Tensor, ...], eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Computes `post_mlp_norms_reference` for contiguous rows on a GPU."""
    rows, size = x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    summed = isinstance(chosen, torch.Tensor)
    _post_mlp_norms[(rows,)](
        dense, *((chosen,) * 4 if summed else chosen), x, scale.contiguous(), *weights, out, total, eps,
        TOP_K=0 if summed else chosen.ids.shape[1], SIZE=size, SIZE_P2=triton.next_power_of_2(size),
        num_warps=SANDWICH_WARPS,
    )  # fmt: skip
    return out, total

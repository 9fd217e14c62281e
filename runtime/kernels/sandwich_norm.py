"""The norms between the parts of a layer that are normed before and after, with the additions that lie between: what a
row takes before its dense part and its experts, and what becomes of both; each in one pass over the row. What the
experts gave may come before it is summed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.fused_moe.moe_sum import Choices, sum_reference, weighted_sum
from runtime.kernels.layernorm import rms_norm_reference
from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton


class Fillings(NamedTuple):
    """What a row is and what is made of it; all but the factor [rows, size]."""

    total: torch.Tensor  # the residual stream
    dense: torch.Tensor  # for the dense part
    factor: torch.Tensor  # [rows], wide: of the norm, for who multiplies by it later
    experts: torch.Tensor  # for the experts


def before_reference(
    mixed: torch.Tensor, x: torch.Tensor, after: torch.Tensor, dense: torch.Tensor, experts: torch.Tensor, eps: float
) -> Fillings:
    """``x + norm(mixed) * after``, its norm times each of two weights [size], and that norm's factor."""
    total = x + rms_norm_reference(mixed, after, eps)
    factor = (total.to(wide(total.dtype)).square().mean(-1) + eps).rsqrt()
    return Fillings(total, rms_norm_reference(total, dense, eps), factor, rms_norm_reference(total, experts, eps))


def after_reference(
    dense: torch.Tensor, chosen: torch.Tensor | Choices, x: torch.Tensor, scale: torch.Tensor,
    weights: tuple[torch.Tensor, ...], eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """``(x + norm(norm(dense) * a + norm(chosen) * b) * c) * scale`` and its norm times d, for weights a, b, c and d
    [size] and `scale` [rows, 1]: (the norm, what it is of)."""
    a, b, c, d = weights
    if isinstance(chosen, Choices):
        chosen = sum_reference(chosen)
    both = rms_norm_reference(dense, a, eps) + rms_norm_reference(chosen, b, eps)
    total = (x + rms_norm_reference(both, c, eps)) * scale
    return rms_norm_reference(total, d, eps), total


@triton.jit
def _normed(x, weight_ptr, column, ok, eps, SIZE: tl.constexpr):
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    return x * scale * tl.load(weight_ptr + column, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def _before(
    mixed_ptr, x_ptr, after_ptr, dense_ptr, experts_ptr, total_ptr, dense_out, factor_out, experts_out, eps,
    SIZE: tl.constexpr, SIZE_P2: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    at = row * SIZE + column
    mixed = tl.load(mixed_ptr + at, mask=ok, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32) + _normed(mixed, after_ptr, column, ok, eps, SIZE)
    total = x.to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + at, total, mask=ok)
    x = total.to(tl.float32)  # the norms see the sum as it is kept
    factor = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    tl.store(factor_out + row, factor)
    x = x * factor
    dense = x * tl.load(dense_ptr + column, mask=ok, other=0.0).to(tl.float32)
    tl.store(dense_out + at, dense.to(dense_out.dtype.element_ty), mask=ok)
    experts = x * tl.load(experts_ptr + column, mask=ok, other=0.0).to(tl.float32)
    tl.store(experts_out + at, experts.to(experts_out.dtype.element_ty), mask=ok)


@triton.jit
def _after(
    dense_ptr, chosen_ptr, ids_ptr, weights_ptr, expert_scale_ptr, x_ptr, scale_ptr, a_ptr, b_ptr, c_ptr, d_ptr,
    out_ptr, total_ptr, eps, TOP_K: tl.constexpr, SIZE: tl.constexpr, SIZE_P2: tl.constexpr,
):  # fmt: skip
    """One program a row. TOP_K: of what was chosen; 0 if that is summed."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    at = row * SIZE + column
    dense = tl.load(dense_ptr + at, mask=ok, other=0.0).to(tl.float32)
    both = _normed(dense, a_ptr, column, ok, eps, SIZE)
    if TOP_K:
        chosen = weighted_sum(
            chosen_ptr, ids_ptr, weights_ptr, expert_scale_ptr, row, column, ok, TOP_K, SIZE, SIZE_P2, True
        )
        chosen = chosen.to(chosen_ptr.dtype.element_ty).to(tl.float32)  # the norm sees it as it would be kept
    else:
        chosen = tl.load(chosen_ptr + at, mask=ok, other=0.0).to(tl.float32)
    both += _normed(chosen, b_ptr, column, ok, eps, SIZE)
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32) + _normed(both, c_ptr, column, ok, eps, SIZE)
    total = (x * tl.load(scale_ptr + row).to(tl.float32)).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + at, total, mask=ok)
    out = _normed(total.to(tl.float32), d_ptr, column, ok, eps, SIZE)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=ok)


WARPS = 4


def before(
    mixed: torch.Tensor, x: torch.Tensor, after: torch.Tensor, dense: torch.Tensor, experts: torch.Tensor, eps: float
) -> Fillings:
    """`before_reference` for contiguous rows on a GPU."""
    rows, size = x.shape
    factor = x.new_empty(rows, dtype=torch.float32)
    made = Fillings(torch.empty_like(x), torch.empty_like(x), factor, torch.empty_like(x))
    _before[(rows,)](
        mixed, x, after, dense, experts, *made, eps, SIZE=size, SIZE_P2=triton.next_power_of_2(size), num_warps=WARPS
    )
    return made


def after(
    dense: torch.Tensor, chosen: torch.Tensor | Choices, x: torch.Tensor, scale: torch.Tensor,
    weights: tuple[torch.Tensor, ...], eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`after_reference` for contiguous rows on a GPU."""
    rows, size = x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    summed = isinstance(chosen, torch.Tensor)
    _after[(rows,)](
        dense, *((chosen,) * 4 if summed else chosen), x, scale.contiguous(), *weights, out, total, eps,
        TOP_K=0 if summed else chosen.ids.shape[1], SIZE=size, SIZE_P2=triton.next_power_of_2(size), num_warps=WARPS,
    )  # fmt: skip
    return out, total

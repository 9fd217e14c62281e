"""Sandwich norms (norms before and after each sublayer), fused with the additions between them, one pass per row.

One kernel computes the inputs of the dense MLP and of the experts, the other combines their outputs. The latter can
read the experts' outputs before they are summed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.fused_moe.moe_sum import TopKOutputs, moe_sum_reference, weighted_sum
from runtime.kernels.layernorm import rms_norm_reference
from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton


class NormOutputs(NamedTuple):
    """Results of `pre_mlp_norms`, [rows, size] except `factor`."""

    total: torch.Tensor  # the residual stream
    dense: torch.Tensor  # input of the dense MLP
    factor: torch.Tensor  # [rows], float32 or float64: the factor of the norm, for the router
    experts: torch.Tensor  # input of the experts


def pre_mlp_norms_reference(
    mixed: torch.Tensor,
    x: torch.Tensor,
    post_attention: torch.Tensor,
    dense: torch.Tensor,
    experts: torch.Tensor,
    eps: float,
) -> NormOutputs:
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
def _normed(x, weight_ptr, column, ok, eps, SIZE: tl.constexpr):
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    return x * scale * tl.load(weight_ptr + column, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def _pre_mlp_norms(
    mixed_ptr, x_ptr, post_attention_ptr, dense_ptr, experts_ptr, total_ptr, dense_out, factor_out, experts_out, eps,
    SIZE: tl.constexpr, SIZE_P2: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    at = row * SIZE + column
    mixed = tl.load(mixed_ptr + at, mask=ok, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32) + _normed(
        mixed, post_attention_ptr, column, ok, eps, SIZE
    )
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
    """One program per row. TOP_K: number of experts per row in `chosen`; 0 if they are summed already."""
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
        chosen = chosen.to(chosen_ptr.dtype.element_ty).to(tl.float32)  # rounded as the separate kernel would store it
    else:
        chosen = tl.load(chosen_ptr + at, mask=ok, other=0.0).to(tl.float32)
    both += _normed(chosen, b_ptr, column, ok, eps, SIZE)
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32) + _normed(both, c_ptr, column, ok, eps, SIZE)
    total = (x * tl.load(scale_ptr + row).to(tl.float32)).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + at, total, mask=ok)
    out = _normed(total.to(tl.float32), d_ptr, column, ok, eps, SIZE)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=ok)


WARPS = 4


def pre_mlp_norms(
    mixed: torch.Tensor,
    x: torch.Tensor,
    post_attention: torch.Tensor,
    dense: torch.Tensor,
    experts: torch.Tensor,
    eps: float,
) -> NormOutputs:
    """`pre_mlp_norms_reference` for contiguous rows on a GPU."""
    rows, size = x.shape
    factor = x.new_empty(rows, dtype=torch.float32)
    out = NormOutputs(torch.empty_like(x), torch.empty_like(x), factor, torch.empty_like(x))
    _pre_mlp_norms[(rows,)](
        mixed,
        x,
        post_attention,
        dense,
        experts,
        *out,
        eps,
        SIZE=size,
        SIZE_P2=triton.next_power_of_2(size),
        num_warps=WARPS,
    )
    return out


def post_mlp_norms(
    dense: torch.Tensor, chosen: torch.Tensor | TopKOutputs, x: torch.Tensor, scale: torch.Tensor,
    weights: tuple[torch.Tensor, ...], eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`post_mlp_norms_reference` for contiguous rows on a GPU."""
    rows, size = x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    summed = isinstance(chosen, torch.Tensor)
    _post_mlp_norms[(rows,)](
        dense, *((chosen,) * 4 if summed else chosen), x, scale.contiguous(), *weights, out, total, eps,
        TOP_K=0 if summed else chosen.ids.shape[1], SIZE=size, SIZE_P2=triton.next_power_of_2(size), num_warps=WARPS,
    )  # fmt: skip
    return out, total

"""RMSNorm, alone and fused with the residual addition."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in x's dtype; computed in float32 or float64.

    `weight`: None for a norm without weights.
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
    """One program per row; x is the sum of SPLITS partial results."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE_P2)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        x += tl.load(x_ptr + split * rows.to(tl.int64) * SIZE + at, mask=ok, other=0.0)
    if ADD:
        x += tl.load(residual_ptr + at, mask=ok, other=0.0).to(tl.float32)
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + at, total, mask=ok)
        x = total.to(tl.float32)  # the norm's input is the rounded sum
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    x = x * scale
    if WEIGHTED:
        x = x * tl.load(weight_ptr + column, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=ok)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """`rms_norm_reference` for contiguous [rows, size] on a GPU."""
    out = torch.empty_like(x)
    _launch(x, x, weight, out, out, eps, add=False)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_rms_norm_reference` for contiguous [rows, size] on a GPU.

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

"""GEMM, residual addition and RMSNorm, with split-K for few rows.

Split-K keeps all SMs busy. The norm kernel sums the partial results, so that no extra launch is needed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.layernorm import add_rms_norm, rms_norm_reference
from runtime.kernels.precision import wide
from runtime.kernels.tma import supports_tma

SPLIT_K = 2
ROWS, INPUTS = 256, 8192  # split-K is faster for at most this many rows and at least this many inputs
LESS_INPUTS = 2048  # minimum inputs for a small GEMM:
FEW_ROWS = 32  # one of at most this many rows,
NARROW_ROWS, NARROW_OUTPUTS = 128, 2048  # or of at most this many rows and outputs


def gemm_add_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_rms_norm_reference` of x [rows, inputs] times weight [outputs, inputs]^T, and residual [rows, outputs].

    With split-K the GEMM's result is not rounded before the residual is added.
    """
    up = wide(x.dtype) if use_split_k(*x.shape, len(weight)) else x.dtype
    total = (F.linear(x.to(up), weight.to(up)) + residual.to(up)).to(x.dtype)
    return rms_norm_reference(total, norm, eps), total


def gemm_add_norm(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gemm_add_norm_reference` for contiguous rows on a GPU; split-K from Hopper on."""
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
    return aligned and rows <= ROWS and inputs >= (LESS_INPUTS if is_small else INPUTS)

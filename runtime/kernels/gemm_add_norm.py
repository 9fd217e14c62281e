"""A product whose results are added to the residual and normed: few rows are multiplied in shares of the inputs, which
keep all multiprocessors at work, and the norm adds them up, so that no launch is needed for that."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.layernorm import add_rms_norm, rms_norm_reference
from runtime.kernels.precision import wide
from runtime.kernels.tma import describable

SHARES = 2
ROWS, INPUTS = 256, 8192  # most rows, and least inputs, for which that is quicker
LESS_INPUTS = 2048  # as many are enough
FEW_ROWS = 32  # for so many rows,
NARROW_ROWS, NARROW_OUTPUTS = 128, 2048  # or for more that make no more outputs than this


def product_add_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_rms_norm_reference` of x [rows, inputs] times weight [outputs, inputs]^T, and residual [rows, outputs]; a
    product in shares is not rounded before it is added."""
    up = wide(x.dtype) if in_shares(*x.shape, len(weight)) else x.dtype
    total = (F.linear(x.to(up), weight.to(up)) + residual.to(up)).to(x.dtype)
    return rms_norm_reference(total, norm, eps), total


def product_add_norm(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`product_add_norm_reference` for contiguous rows on a GPU; in shares on those from Hopper on."""
    rows, inputs = x.shape
    if not (describable(x) and describable(weight) and in_shares(rows, inputs, len(weight))):
        return add_rms_norm(F.linear(x, weight), residual, norm, eps)
    mine, theirs = (each.unflatten(1, (SHARES, -1)) for each in (x, weight))
    shares = torch.bmm(mine.transpose(0, 1), theirs.permute(1, 2, 0), out_dtype=torch.float32)
    return add_rms_norm(shares, residual, norm, eps)


def in_shares(rows: int, inputs: int, outputs: int) -> bool:
    """Whether that is quicker, by what was measured on a Hopper GPU."""
    few = rows <= FEW_ROWS or (rows <= NARROW_ROWS and outputs <= NARROW_OUTPUTS)
    aligned = inputs % (8 * SHARES) == 0  # a share begins where the library likes it to
    return aligned and rows <= ROWS and inputs >= (LESS_INPUTS if few else INPUTS)

"""RMSNorm, alone and with the residual's addition before it."""

from __future__ import annotations

import torch

from runtime.kernels.precision import wide


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, computed wide, in x's dtype."""
    h = x.to(wide(x.dtype))
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return (h * weight.to(h.dtype)).to(x.dtype)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual), x + residual), both [rows, hidden] in x's dtype; the sum is rounded to it first."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total

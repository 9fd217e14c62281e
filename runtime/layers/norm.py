"""RMSNorm with a weight."""

from __future__ import annotations

import torch
from torch import nn

from runtime.kernels.dispatch import Kernels
from runtime.layers.linear import empty_parameter


class RMSNorm(nn.Module):
    """Over the last dimension of [rows, size]; unfilled."""

    def __init__(self, size: int, eps: float, *, device: torch.device, dtype: torch.dtype, kernels: Kernels) -> None:
        super().__init__()
        self.weight = empty_parameter(size, device=device, dtype=dtype)
        self.eps = eps
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual)."""
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)

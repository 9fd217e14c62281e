"""RMSNorm."""

from __future__ import annotations

import torch
from torch import nn

from runtime.layers.layer_factory import Build, Calls
from runtime.layers.parameter import tensor_of


class RMSNorm(nn.Module):
    """Over the last dimension of [rows, size]; unfilled. `weighted`: with a weight for each of it."""

    __call__: Calls[[torch.Tensor], torch.Tensor]

    def __init__(self, build: Build, size: int, eps: float, *, weighted: bool = True) -> None:
        super().__init__()
        self.weight = build.parameter(size) if weighted else None
        self.eps = eps
        self.kernels = build.kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x, tensor_of(self.weight), self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual)."""
        return self.kernels.add_rms_norm(x, residual, tensor_of(self.weight), self.eps)

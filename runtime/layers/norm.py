"""RMSNorm layer."""

from __future__ import annotations

import torch
from torch import nn

from runtime.layers.layer_factory import ForwardCall, LayerFactory
from runtime.layers.parameter import tensor_of


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension of [rows, size], uninitialized; without weights unless `weighted`."""

    __call__: ForwardCall[[torch.Tensor], torch.Tensor]

    def __init__(self, factory: LayerFactory, size: int, eps: float, *, weighted: bool = True) -> None:
        super().__init__()
        self.weight = factory.parameter(size) if weighted else None
        self.eps = eps
        self.kernels = factory.kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x, tensor_of(self.weight), self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (norm(x + residual), x + residual)."""
        return self.kernels.add_rms_norm(x, residual, tensor_of(self.weight), self.eps)

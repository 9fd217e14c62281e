"""The dense feed-forward layer."""

from __future__ import annotations

import torch
from torch import nn

from runtime.kernels.dispatch import Kernels
from runtime.layers.linear import Linear


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); gate and up are one product, gate rows first. Unfilled."""

    def __init__(self, hidden: int, width: int, *, device: torch.device, dtype: torch.dtype, kernels: Kernels) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * width, bias=False, device=device, dtype=dtype)
        self.down = Linear(width, hidden, bias=False, device=device, dtype=dtype)
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.kernels.silu_mul(self.gate_up(x)))

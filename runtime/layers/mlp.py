"""The dense feed-forward layer."""

from __future__ import annotations

import torch
from torch import nn

from runtime.layers.build import Build
from runtime.layers.linear import Linear


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); gate and up are one product, gate rows first. Unfilled."""

    def __init__(self, build: Build, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_up = Linear(build, hidden, 2 * width, bias=False)
        self.down = Linear(build, width, hidden, bias=False)
        self.kernels = build.kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.kernels.silu_mul(self.gate_up(x)))

"""Matrix products."""

from __future__ import annotations

import torch
from torch import nn

from runtime.layers.build import Build, Calls
from runtime.layers.weight import Weight


class Linear(nn.Module):
    """x W^T (+ b), with x [rows, inputs] and W [outputs, inputs], unfilled: `weight`, or one of its own that adapters
    may change."""

    __call__: Calls[[torch.Tensor], torch.Tensor]

    def __init__(self, build: Build, inputs: int, outputs: int, *, bias: bool, weight: Weight | None = None) -> None:
        super().__init__()
        self.weight = build.adapted(build.weight(outputs, inputs)) if weight is None else weight
        self.bias = build.parameter(outputs) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.matmul(x, None if self.bias is None else self.bias.tensor)

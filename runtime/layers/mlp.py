"""The dense feed-forward layer."""

from __future__ import annotations

import torch
from torch import nn

from runtime.kernels.gate import Activation
from runtime.layers.build import Build, Calls, Gated
from runtime.layers.linear import Linear


class SwiGLU(nn.Module):
    """down(act(gate(x)) * up(x)); gate and up are one product, gate rows first. Unfilled. SwiGLU in the strict sense
    unless `activation` is another than its SiLU. `held`: the weights, if it makes none of its own. Processes share its
    width; `partial`: what each gives is not added up here."""

    __call__: Calls[[torch.Tensor], torch.Tensor]

    def __init__(
        self, build: Build, hidden: int, width: int, activation: Activation = "silu", held: Gated | None = None, *,
        partial: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        rows, columns = build.widths(width, "feed-forward width")
        self.gate_up = Linear(build, hidden, 2 * width, bias=False, weight=held and held.gate_up, outputs_share=rows)
        self.down = Linear(
            build, width, hidden, bias=False, weight=held and held.down, inputs_share=columns, partial=partial
        )
        self.activation = activation
        self.kernels = build.kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.kernels.gate_mul(self.gate_up(x), self.activation))

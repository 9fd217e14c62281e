"""The dense feed-forward layer."""

from __future__ import annotations

import torch
from torch import nn

from runtime.kernels.activation import Activation
from runtime.layers.layer_factory import Build, Calls, Gated
from runtime.layers.linear import Linear
from runtime.layers.norm import RMSNorm
from runtime.layers.parameter import TurnsWeight


class SwiGLU(nn.Module):
    """down(act(gate(x)) * up(x)); gate and up are one product, filled gate rows first. Unfilled. SwiGLU in the strict
    sense unless `activation` is another than its SiLU. `held`: the weights, if it makes none of its own. Processes
    share its width; `partial`: what each gives is not added up here."""

    __call__: Calls[[torch.Tensor], torch.Tensor]

    def __init__(
        self, build: Build, hidden: int, width: int, activation: Activation = "silu", held: Gated | None = None, *,
        partial: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        rows, columns = build.widths(width, "feed-forward width")
        first = build.dense_gates(width, hidden, rows) if held is None else held.gate_up
        self.gate_up = Linear(build, hidden, 2 * width, bias=False, weight=first, outputs_share=rows)
        self.down = Linear(
            build, width, hidden, bias=False, weight=held and held.down, inputs_share=columns, partial=partial
        )
        self.activation = activation
        self.kernels = build.kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self._gated(x))

    def add_normed(self, x: torch.Tensor, residual: torch.Tensor, norm: RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
        """What `norm.add` makes of what this gives, and `residual`."""
        return self.down.add_normed(self._gated(x), residual, norm)

    def _gated(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [rows, width]."""
        weight, product = self.gate_up.weight.current, self.kernels.fused_gate_up
        if product is not None and isinstance(weight, TurnsWeight):
            return product(x, weight.operand, self.activation)
        return self.kernels.act_and_mul(self.gate_up(x), self.activation)

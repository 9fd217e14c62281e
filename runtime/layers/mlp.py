"""Dense gated MLP."""

from __future__ import annotations

import torch
from torch import nn

from runtime.kernels.activation import Activation
from runtime.layers.layer_factory import ForwardCall, GateUpDown, LayerFactory
from runtime.layers.linear import Linear
from runtime.layers.norm import RMSNorm
from runtime.parameters.weight import InterleavedWeight


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), uninitialized. Gate and up are one GEMM, gate rows first in a checkpoint.

    Args:
        activation: "silu" (SwiGLU) or "gelu_tanh".
        weights: existing weights; None creates them.
        partial: leave the all-reduce of a width-sharded MLP to the caller.
    """

    __call__: ForwardCall[[torch.Tensor], torch.Tensor]

    def __init__(
        self, factory: LayerFactory, hidden: int, width: int, activation: Activation = "silu",
        weights: GateUpDown | None = None, *, partial: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        rows, columns = factory.mlp_shards(width, "feed-forward width")
        gate_up_proj = factory.dense_gate_up(width, hidden, rows) if weights is None else weights.gate_up
        self.gate_up_proj = Linear(factory, hidden, 2 * width, bias=False, weight=gate_up_proj, outputs_shard=rows)
        self.down_proj = Linear(
            factory, width, hidden, bias=False, weight=weights and weights.down, inputs_shard=columns, partial=partial
        )
        self.activation = activation
        self.kernels = factory.kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self._activated(x))

    def forward_add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ``norm.add(self(x), residual)``, fused if possible."""
        return self.down_proj.forward_add_norm(self._activated(x), residual, norm)

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        """Returns act(gate(x)) * up(x), [rows, width], for `x` [rows, hidden]."""
        weight, fused = self.gate_up_proj.weight.active, self.kernels.fused_gate_up
        if fused is not None and isinstance(weight, InterleavedWeight):
            return fused(x, weight.kernel_arg, self.activation)
        return self.kernels.act_and_mul(self.gate_up_proj(x), self.activation)

"""The mixture-of-experts feed-forward layer: router, experts, shared experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from runtime.kernels.dispatch import Kernels
from runtime.kernels.precision import wide
from runtime.kernels.routing import RoutingRule
from runtime.layers.linear import empty_parameter
from runtime.layers.mlp import SwiGLU


class Router(nn.Module):
    """Scores experts in float32 (float64 for a float64 model), whatever the model's dtype. Unfilled."""

    def __init__(
        self, hidden: int, experts: int, rule: RoutingRule, *, bias: bool, device: torch.device, dtype: torch.dtype,
        kernels: Kernels,
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight = empty_parameter(experts, hidden, device=device, dtype=wide(dtype))
        self.bias = empty_parameter(experts, device=device, dtype=wide(dtype)) if bias else None
        self.rule = rule
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, hidden] -> ids int32 and weights, both [rows, top_k]."""
        return self.kernels.route(F.linear(x.to(self.weight.dtype), self.weight), self.bias, self.rule)


class MoE(nn.Module):
    """Routed experts of `width`, plus shared experts as one SwiGLU of `shared_width` (0: none). Unfilled."""

    def __init__(
        self, hidden: int, width: int, experts: int, shared_width: int, rule: RoutingRule, *, router_bias: bool,
        device: torch.device, dtype: torch.dtype, kernels: Kernels,
    ) -> None:  # fmt: skip
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.router = Router(hidden, experts, rule, bias=router_bias, kernels=kernels, **where)
        self.gate_up = empty_parameter(experts, 2 * width, hidden, **where)
        self.down = empty_parameter(experts, hidden, width, **where)
        self.shared = SwiGLU(hidden, shared_width, kernels=kernels, **where) if shared_width else None
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids, weights = self.router(x)
        shared = None if self.shared is None else self.shared(x)
        return self.kernels.moe(x, ids, weights, self.gate_up, self.down, shared)

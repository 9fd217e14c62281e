"""The mixture-of-experts feed-forward layer: router, experts, shared experts."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from runtime.kernels.moe_router import RoutingRule
from runtime.kernels.precision import wide
from runtime.layers.layer_factory import Build, Calls, Gated
from runtime.layers.lora import Lora
from runtime.layers.lora_experts import adapted_experts
from runtime.layers.mlp import SwiGLU
from runtime.layers.norm import RMSNorm
from runtime.layers.parameter import tensor_of
from runtime.layers.sharding import Experts, Share


class Router(nn.Module):
    """Scores experts in float32 (float64 for a float64 model), whatever the model's dtype; rows are of either.
    Unfilled."""

    __call__: Calls[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]

    def __init__(self, build: Build, hidden: int, experts: int, rule: RoutingRule, *, bias: bool) -> None:
        super().__init__()
        self.weight = build.scores(experts, hidden)
        self.bias = build.parameter(experts, dtype=wide(build.dtype)) if bias else None
        self.rule = rule
        self.kernels = build.kernels

    def forward(
        self, x: torch.Tensor, first: torch.Tensor | None, factor: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, hidden] -> ids int32 and weights, both [rows, top_k]. `first`: see ``route_reference``; `factor`: see
        ``router_logits_reference``."""
        logits = self.kernels.router_logits(x, self.weight.operand, factor)
        return self.kernels.route(logits, tensor_of(self.bias), self.rule, first)


class Stack(NamedTuple):
    """The experts that are kept here, or their share of each one's width; `here` None: all of them."""

    held: Gated
    here: Experts | None


def stack(build: Build, experts: int, hidden: int, width: int) -> Stack:
    """Unfilled. Every process gives its part of the result, and all are to be added up."""
    if build.deals and not build.group.is_single:
        here = build.part(experts, "experts")
        share = Share(-3, experts, (here,))
        gate_up = build.expert_gates(experts, 2 * width, hidden, share=share)
        return Stack(Gated(gate_up, build.weight(experts, hidden, width, share=share)), Experts(here))
    rows, columns = build.widths(width)
    gate_up = build.expert_gates(experts, 2 * width, hidden, share=rows)
    return Stack(Gated(gate_up, build.weight(experts, hidden, width, share=columns)), None)


class MoE(nn.Module):
    """Routed experts of `width`, plus shared experts as one SwiGLU of `shared_width` (0: none). Unfilled. Where it is
    as wide as an expert and the kernels take it, the shared one is an expert that every row chooses."""

    __call__: Calls[[torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __init__(
        self, build: Build, hidden: int, width: int, experts: int, shared_width: int, rule: RoutingRule, *,
        router_bias: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.joined = build.joined(experts, hidden, width) if shared_width == width else None
        if self.joined is None:
            held, self.here = stack(build, experts, hidden, width)
            last = None
        else:
            held, last, rule = self.joined.experts, self.joined.last, replace(rule, shared=True)
            last = Gated(*(build.adapted(weight, apart=True) for weight in last))
            self.here = None
        self.router = Router(build, hidden, experts, rule, bias=router_bias)
        self.gate_up, self.down = (build.adapted(weight) for weight in held)
        self.top_k = rule.top_k
        self.lora = build.lora
        self.shared = SwiGLU(build, hidden, shared_width, held=last, partial=True) if shared_width else None
        self.kernels = build.kernels
        self.group = build.group

    def forward(self, x: torch.Tensor, first: torch.Tensor | None = None) -> torch.Tensor:
        ids, weights = self.router(x, first, None)
        if self.here is not None:
            ids = self.here.at(ids)
        if self.lora is not None and self.lora.in_pieces:
            return self._in_pieces(x, ids, weights, self.lora)
        operands, room = self._operands(x), self.group.output_buffer(x.shape, x.dtype)
        return self.group.all_reduce_out(self.kernels.moe(x, ids, weights, *operands, out=room))

    def add_normed(
        self, x: torch.Tensor, first: torch.Tensor | None, residual: torch.Tensor, norm: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `norm.add` makes of what this gives, and `residual`."""
        in_pieces = self.lora is not None and self.lora.in_pieces
        if self.kernels.moe_add_norm is None or in_pieces or not self.group.is_single:
            return norm.add(self(x, first), residual)
        ids, weights = self.router(x, first, None)
        after = residual, tensor_of(norm.weight), norm.eps
        return self.kernels.moe_add_norm(x, ids, weights, *self._operands(x), *after)

    def _in_pieces(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, lora: Lora) -> torch.Tensor:
        """With what adapters change in the experts. A shared one that is routed to has the last column."""
        k = self.top_k
        shared = None if self.shared is None else self.shared(x)
        made = adapted_experts(x, ids[:, :k], weights[:, :k], self.gate_up, self.down, shared, lora)
        return self.group.all_reduce_out(made)

    def _operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """What the kernels take: both products' weights, and what is added."""
        if self.joined is not None:
            return self.joined.gate_up, self.joined.down, None
        return self.gate_up.operand, self.down.operand, None if self.shared is None else self.shared(x)

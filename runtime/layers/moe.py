"""Mixture-of-experts layer: router, routed experts, shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from runtime.kernels.common import wide
from runtime.kernels.moe_router import RoutingConfig
from runtime.layers.layer_factory import ForwardCall, GateUpDown, LayerFactory
from runtime.layers.lora import LoRAContext, lora_experts
from runtime.layers.mlp import GatedMLP
from runtime.layers.norm import RMSNorm
from runtime.parameters.sharding import Shard, local_expert_ids
from runtime.parameters.weight import tensor_of


class Router(nn.Module):
    """Scores experts in float32 (float64 for a float64 model) for rows of any dtype, and selects top_k of them."""

    __call__: ForwardCall[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]

    def __init__(self, factory: LayerFactory, hidden: int, experts: int, routing: RoutingConfig, *, bias: bool) -> None:
        super().__init__()
        self.weight = factory.router_weight(experts, hidden)
        self.bias = factory.parameter(experts, dtype=wide(factory.dtype)) if bias else None
        self.routing = routing
        self.kernels = factory.kernels

    def forward(
        self, x: torch.Tensor, first: torch.Tensor | None, factor: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Selects experts for `x` [rows, hidden]. Returns their ids, int32, and their weights, both [rows, top_k].

        Args:
            first: see ``select_experts_reference``.
            factor: see ``router_logits_reference``.
        """
        logits = self.kernels.router_logits(x, self.weight.kernel_arg, factor)
        return self.kernels.select_experts(logits, tensor_of(self.bias), self.routing, first)


class ExpertWeights(NamedTuple):
    """Weights of the local experts.

    `expert_shard` is None if all experts are local, in full or each with a shard of its width.
    """

    weights: GateUpDown
    expert_shard: range | None


def make_experts(factory: LayerFactory, experts: int, hidden: int, width: int) -> ExpertWeights:
    """Creates uninitialized weights. Ranks sum their partial results with all-reduce."""
    expert_shard = None
    if factory.group.is_single or not factory.expert_parallel:
        rows, columns = factory.mlp_shards(width)
    else:
        expert_shard = factory.local_range(experts, "experts")
        rows = columns = Shard(-3, experts, (expert_shard,))
    gate_up = factory.expert_gate_up(experts, 2 * width, hidden, shard=rows)
    return ExpertWeights(GateUpDown(gate_up, factory.weight(experts, hidden, width, shard=columns)), expert_shard)


class MoE(nn.Module):
    """Routed experts of `width`, and a shared expert of `shared_width` (0 for none). Uninitialized.

    If both widths are equal and the kernels support it, the shared expert is fused: every row selects it as expert N.
    """

    __call__: ForwardCall[[torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __init__(
        self, factory: LayerFactory, hidden: int, width: int, experts: int, shared_width: int, routing: RoutingConfig,
        *, router_bias: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.fused_shared = factory.fused_shared_expert(experts, hidden, width) if shared_width == width else None
        shared_weights = None
        if self.fused_shared is None:
            weights, self.expert_shard = make_experts(factory, experts, hidden, width)
        else:
            weights, self.expert_shard = ExpertWeights(self.fused_shared.experts, None)
            shared_weights = GateUpDown(*(factory.with_lora(w, eager=True) for w in self.fused_shared.shared))
            routing = replace(routing, fused_shared_expert=True)
        self.gate = Router(factory, hidden, experts, routing, bias=router_bias)
        self.gate_up_proj, self.down_proj = (factory.with_lora(weight) for weight in weights)
        self.top_k = routing.top_k
        self.lora = factory.lora
        self.shared_experts = (
            GatedMLP(factory, hidden, shared_width, weights=shared_weights, partial=True) if shared_width else None
        )
        self.kernels = factory.kernels
        self.group = factory.group
        self.shards_residual = factory.shards_residual

    def forward(self, x: torch.Tensor, first: torch.Tensor | None = None) -> torch.Tensor:
        return self.group.all_reduce_out(self._partial(x, first))

    def _partial(self, x: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        """Returns the partial results of this rank."""
        ids, weights = self.gate(x, first, None)
        ids = local_expert_ids(ids, self.expert_shard)
        if self.lora is not None and self.lora.needs_eager:
            return self._forward_lora(x, ids, weights, self.lora)
        kernel_args, out = self._kernel_args(x), self.group.output_buffer(x.shape, x.dtype)
        return self.kernels.moe(x, ids, weights, *kernel_args, "silu", out)

    def forward_add_norm(
        self, x: torch.Tensor, first: torch.Tensor | None, residual: torch.Tensor, norm: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ``norm.add(self(x, first), residual)``, fused if possible."""
        if self.shards_residual:
            return norm.add_reduced(self._partial(x, first), residual, self.group)
        needs_eager = self.lora is not None and self.lora.needs_eager
        if self.kernels.moe_add_norm is None or needs_eager or not self.group.is_single:
            return norm.add(self(x, first), residual)
        ids, weights = self.gate(x, first, None)
        norm_args = residual, tensor_of(norm.weight), norm.eps
        return self.kernels.moe_add_norm(x, ids, weights, *self._kernel_args(x), *norm_args)

    def _forward_lora(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, lora: LoRAContext
    ) -> torch.Tensor:
        """Runs the experts with LoRA. A fused shared expert, which is the last choice, is computed separately."""
        k = self.top_k
        shared_experts = None if self.shared_experts is None else self.shared_experts(x)
        return lora_experts(x, ids[:, :k], weights[:, :k], self.gate_up_proj, self.down_proj, shared_experts, lora)

    def _kernel_args(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns the gate_up and down arguments of the kernels, and the rows to add to the result (None: none)."""
        if self.fused_shared is not None:
            return self.fused_shared.gate_up, self.fused_shared.down, None
        shared = None if self.shared_experts is None else self.shared_experts(x)
        return self.gate_up_proj.kernel_arg, self.down_proj.kernel_arg, shared

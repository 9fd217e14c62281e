"""The experts of a mixture on a GPU: a gated product and a second one over the pairs of each expert, and the sum of a
row's choices."""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation
from runtime.kernels.fused_moe.down import run_down
from runtime.kernels.fused_moe.gate_up import run_gate_up
from runtime.kernels.fused_moe.moe_align import sort_by_expert
from runtime.kernels.fused_moe.moe_sum import sum_add_norm, sum_up
from runtime.kernels.fused_moe.tile_config import cut, fixed_cut, name_of


def moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
    *,
    fixed: bool = False,
) -> torch.Tensor:
    """`moe_reference` on a GPU for contiguous tensors, float32 weights, and `gate_up` in turns (`turns.in_turns`); no
    host synchronisation, deterministic. `fixed`: a row's bits do not depend on the others."""
    return sum_up(products(x, ids, gate_up, down, activation, fixed=fixed), ids, weights, shared, out)


def moe_add_norm(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    residual: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    *,
    fixed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_rms_norm_reference` of what `moe` gives, and `residual`."""
    return sum_add_norm(products(x, ids, gate_up, down, "silu", fixed=fixed), ids, weights, shared, residual, norm, eps)


def products(
    x: torch.Tensor, ids: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, activation: Activation, *,
    fixed: bool = False,
) -> torch.Tensor:  # fmt: skip
    """[rows * top_k, hidden]: each row's choices through their experts; nothing is stored for dead ones."""
    hidden, experts, width = x.shape[1], gate_up.shape[0], down.shape[2]
    if fixed:
        chosen = fixed_cut(ids.numel(), experts, x.element_size(), hidden, width)
    else:
        chosen = cut(ids.numel(), experts, x.element_size(), hidden, width, name_of(x.device))
    plan = sort_by_expert(ids, experts, chosen.height)
    inner, pairs = x.new_empty(ids.numel(), width), x.new_empty(ids.numel(), hidden)
    run_gate_up(x, gate_up, inner, plan.order, plan.tiles, ids.shape[1], chosen.height, chosen.gate_up, activation)
    run_down(inner, down, pairs, plan, chosen.down)
    return pairs

"""Fused MoE on a GPU: tokens aligned by expert, a gate_up GEMM and a down GEMM per expert, and the weighted sum per
row.
"""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation
from runtime.kernels.fused_moe.down import run_down
from runtime.kernels.fused_moe.gate_up import run_gate_up
from runtime.kernels.fused_moe.moe_align import moe_align_block_size
from runtime.kernels.fused_moe.moe_sum import moe_sum, moe_sum_add_norm
from runtime.kernels.fused_moe.tile_config import batch_invariant_config, device_name, get_config


def fused_moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """`moe_reference` on a GPU for contiguous tensors, float32 weights, and interleaved `gate_up` rows.

    Deterministic, no host sync.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows.
    """
    return moe_sum(
        fused_experts(x, ids, gate_up, down, activation, batch_invariant=batch_invariant), ids, weights, shared, out
    )


def fused_moe_add_norm(
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
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_rms_norm_reference` of the result of `fused_moe` and `residual`."""
    return moe_sum_add_norm(
        fused_experts(x, ids, gate_up, down, "silu", batch_invariant=batch_invariant),
        ids,
        weights,
        shared,
        residual,
        norm,
        eps,
    )


def fused_experts(
    x: torch.Tensor, ids: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, activation: Activation, *,
    batch_invariant: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Returns the outputs of each row's experts, [rows * top_k, hidden]; undefined for expert -1."""
    hidden, experts, width = x.shape[1], gate_up.shape[0], down.shape[2]
    if batch_invariant:
        chosen = batch_invariant_config(ids.numel(), experts, x.element_size(), hidden, width)
    else:
        chosen = get_config(ids.numel(), experts, x.element_size(), hidden, width, device_name(x.device))
    aligned = moe_align_block_size(ids, experts, chosen.height)
    inner, pairs = x.new_empty(ids.numel(), width), x.new_empty(ids.numel(), hidden)
    run_gate_up(
        x, gate_up, inner, aligned.order, aligned.tiles, ids.shape[1], chosen.height, chosen.gate_up, activation
    )
    run_down(inner, down, pairs, aligned, chosen.down)
    return pairs

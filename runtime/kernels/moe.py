"""Mixture of experts in torch: gated MLPs selected per row, weighted and summed. ``fused_moe`` is the GPU version."""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, act_and_mul_reference
from runtime.kernels.precision import wide

# Rows of the batched GEMM, including padding, per real row: beyond it, one GEMM per expert is faster, unless rows are
# so few that the number of calls dominates.
PADDING_LIMIT = 2
FEW_ROWS = 512


def moe_reference(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``shared[t] + sum_j weights[t, j] * expert[ids[t, j]](x[t])``, accumulated in float32 (float64 for float64).

    Args:
        x: [rows, hidden]; ids: int32 [rows, top_k], -1 for no expert; weights: float [rows, top_k].
        gate_up: [experts, 2 * width, hidden], gate rows first; down: [experts, hidden, width].
        shared: [rows, hidden] to add, or None.
        activation: of the gated MLPs.
        out: receives the result, if not None.

    Returns:
        [rows, hidden] in x's dtype.
    """
    up = wide(x.dtype)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up).clone()
    for expert in range(len(gate_up)):
        row, choice = (ids == expert).nonzero(as_tuple=True)
        hidden = act_and_mul_reference(x[row] @ gate_up[expert].t(), activation)
        total.index_add_(0, row, weights[row, choice, None].to(up) * (hidden @ down[expert].t()).to(up))
    return store_result(total.to(x.dtype), out)


def store_result(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Returns `result`, copied to `out` if not None."""
    return result if out is None else out.copy_(result)


def moe_torch(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`moe_reference` with few calls, for CPUs: rows sorted by expert, and batched if there are few.

    The result of a row depends on the other rows only by rounding.
    """
    rows, top_k = ids.shape
    experts = gate_up.shape[0]
    flat = ids.flatten().long()
    num_padding, counts = torch.bincount(flat + 1, minlength=experts + 1).split([1, experts])
    order = flat.argsort(stable=True)[int(num_padding) :]  # pairs (row, choice) grouped by expert
    inputs = x[order // top_k]
    if experts * int(counts.max()) <= max(PADDING_LIMIT * len(flat), FEW_ROWS):
        outputs = _batched(inputs, flat[order], counts, gate_up, down, activation)
    else:
        outputs = _one_by_one(inputs, counts.tolist(), gate_up, down, activation)
    up = wide(x.dtype)
    by_choice = outputs.new_zeros(rows * top_k, outputs.shape[1]).index_copy_(0, order, outputs)
    by_choice = by_choice.unflatten(0, (rows, top_k)).to(up)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up)
    for choice, weight in enumerate(weights.to(up).split(1, dim=1)):
        total = torch.addcmul(total, weight, by_choice[:, choice])
    return store_result(total.to(x.dtype), out)


def _batched(
    inputs: torch.Tensor,
    experts: torch.Tensor,
    counts: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation,
) -> torch.Tensor:
    """One batched GEMM for all experts, padded to the largest number of rows: few calls, for few rows."""
    starts = counts.cumsum(0) - counts
    padded_index = experts * int(counts.max()) + torch.arange(len(inputs), device=inputs.device) - starts[experts]
    padded = inputs.new_zeros(len(counts) * int(counts.max()), inputs.shape[1])
    padded[padded_index] = inputs
    hidden = act_and_mul_reference(
        torch.bmm(padded.unflatten(0, (len(counts), -1)), gate_up.transpose(1, 2)), activation
    )
    return torch.bmm(hidden, down.transpose(1, 2)).flatten(0, 1)[padded_index]


def _one_by_one(
    inputs: torch.Tensor, counts: list[int], gate_up: torch.Tensor, down: torch.Tensor, activation: Activation
) -> torch.Tensor:
    """One GEMM per expert without padding: for many rows or uneven routing."""
    hidden = inputs.new_empty(len(inputs), gate_up.shape[1])
    outputs = torch.empty_like(inputs)
    for expert, (source, target) in enumerate(zip(inputs.split(counts), hidden.split(counts), strict=True)):
        if len(source):
            torch.mm(source, gate_up[expert].t(), out=target)
    activated = act_and_mul_reference(hidden, activation)
    for expert, (source, target) in enumerate(zip(activated.split(counts), outputs.split(counts), strict=True)):
        if len(source):
            torch.mm(source, down[expert].t(), out=target)
    return outputs

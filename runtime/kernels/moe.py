"""The experts of a mixture: each row through its chosen SwiGLUs, weighted and summed."""

from __future__ import annotations

import torch

from runtime.kernels.precision import wide
from runtime.kernels.silu_mul import silu_mul_reference

# Rows of one batched product, padding included, for each row that is real: beyond it, expert after expert is faster.
PADDING_LIMIT = 2


def moe_reference(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
) -> torch.Tensor:
    """``shared[t] + sum_j weights[t, j] * expert[ids[t, j]](x[t])``, summed wide, j ascending.

    Args:
        x: [rows, hidden]; ids: int32 [rows, top_k]; weights: float [rows, top_k].
        gate_up: [experts, 2 * width, hidden], gate rows first; down: [experts, hidden, width].
        shared: [rows, hidden] to add, or None.

    Returns:
        [rows, hidden] in x's dtype. A row's result depends on the other rows by rounding alone.
    """
    rows, top_k = ids.shape
    experts = gate_up.shape[0]
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)  # pairs (row, choice) grouped by expert
    counts = torch.bincount(flat, minlength=experts)
    inputs = x[order // top_k]
    if experts * int(counts.max()) <= PADDING_LIMIT * max(len(flat), 32):
        outputs = _batched(inputs, flat[order], counts, gate_up, down)
    else:
        outputs = _one_by_one(inputs, counts.tolist(), gate_up, down)
    up = wide(x.dtype)
    by_choice = torch.empty_like(outputs).index_copy_(0, order, outputs).unflatten(0, (rows, top_k)).to(up)
    total = torch.bmm(weights.to(up).unsqueeze(1), by_choice).squeeze(1)
    return (total if shared is None else total + shared.to(up)).to(x.dtype)


def _batched(
    inputs: torch.Tensor, experts: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """All experts in one batched product, each padded to the fullest: few calls, for few rows."""
    starts = counts.cumsum(0) - counts
    place = experts * int(counts.max()) + torch.arange(len(inputs), device=inputs.device) - starts[experts]
    padded = inputs.new_zeros(len(counts) * int(counts.max()), inputs.shape[1])
    padded[place] = inputs
    hidden = silu_mul_reference(torch.bmm(padded.unflatten(0, (len(counts), -1)), gate_up.transpose(1, 2)))
    return torch.bmm(hidden, down.transpose(1, 2)).flatten(0, 1)[place]


def _one_by_one(inputs: torch.Tensor, counts: list[int], gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Expert after expert, no padding: for many rows, or rows that crowd at few experts."""
    hidden = inputs.new_empty(len(inputs), gate_up.shape[1])
    outputs = torch.empty_like(inputs)
    for expert, (source, target) in enumerate(zip(inputs.split(counts), hidden.split(counts), strict=True)):
        if len(source):
            torch.mm(source, gate_up[expert].t(), out=target)
    activated = silu_mul_reference(hidden)
    for expert, (source, target) in enumerate(zip(activated.split(counts), outputs.split(counts), strict=True)):
        if len(source):
            torch.mm(source, down[expert].t(), out=target)
    return outputs

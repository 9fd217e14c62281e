"""Products with weights of eight bits, in torch: made whole a piece at a time, correct and slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.fp8 import Fp8
from runtime.kernels.gate import Activation, gate_mul_reference
from runtime.kernels.precision import wide

PIECE = 1 << 22  # numbers of a weight that are whole at a time


def linear_torch(x: torch.Tensor, weight: Fp8, bias: torch.Tensor | None) -> torch.Tensor:
    """x [rows, inputs] times `weight` [outputs, inputs], transposed, plus `bias` [outputs] -> [rows, outputs] in x's
    dtype."""
    outputs, inputs = weight.values.shape
    step = max(1, PIECE // inputs)
    if step >= outputs:
        return F.linear(x, weight.whole(x.dtype), bias)
    out = x.new_empty(len(x), outputs)
    for first in range(0, outputs, step):
        part = slice(first, first + step)
        out[:, part] = F.linear(x, weight[part].whole(x.dtype), None if bias is None else bias[part])
    return out


def moe_torch(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Fp8,
    down: Fp8,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
) -> torch.Tensor:
    """``moe.moe_reference`` with weights of eight bits; an expert at a time is whole."""
    up = wide(x.dtype)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up).clone()
    for expert in ids.unique().tolist():
        if expert < 0:
            continue
        row, choice = (ids == expert).nonzero(as_tuple=True)
        hidden = gate_mul_reference(linear_torch(x[row], gate_up[expert], None), activation)
        out = linear_torch(hidden, down[expert], None)
        total.index_add_(0, row, weights[row, choice, None].to(up) * out.to(up))
    return total.to(x.dtype)

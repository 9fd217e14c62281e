"""Products with weights of few bits, in torch: made whole a piece at a time, correct and slow."""

from __future__ import annotations

from typing import Protocol, Self

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation, gate_mul_reference
from runtime.kernels.moe import written
from runtime.kernels.precision import wide

PIECE = 1 << 22  # numbers of a weight that are whole at a time


class Packed(Protocol):
    """Codes of few bits [..., rows, stored] and their scales [..., rows, ...], which stand for [..., rows, size]."""

    @property
    def values(self) -> torch.Tensor: ...

    @property
    def scales(self) -> torch.Tensor: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> Self: ...

    def box(self, rows: slice, inputs: range) -> Self: ...

    def whole(self, dtype: torch.dtype) -> torch.Tensor: ...


def linear_torch(x: torch.Tensor, weight: Packed, bias: torch.Tensor | None) -> torch.Tensor:
    """x [rows, inputs] times `weight` [outputs, inputs], transposed, plus `bias` [outputs] -> [rows, outputs] in x's
    dtype."""
    outputs, inputs = weight.shape
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
    gate_up: Packed,
    down: Packed,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``moe.moe_reference`` with weights of few bits; an expert at a time is whole."""
    up = wide(x.dtype)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up).clone()
    for expert in ids.unique().tolist():
        if expert < 0:
            continue
        row, choice = (ids == expert).nonzero(as_tuple=True)
        hidden = gate_mul_reference(linear_torch(x[row], gate_up[expert], None), activation)
        made = linear_torch(hidden, down[expert], None)
        total.index_add_(0, row, weights[row, choice, None].to(up) * made.to(up))
    return written(total.to(x.dtype), out)

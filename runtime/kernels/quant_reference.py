"""Linear and MoE layers with quantized weights in torch: dequantized chunk by chunk, correct and slow."""

from __future__ import annotations

from typing import Protocol, Self

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation, act_and_mul_reference
from runtime.kernels.moe import store_result
from runtime.kernels.precision import wide

CHUNK_ELEMENTS = 1 << 22  # elements of a weight that are dequantized at once


class QuantizedTensor(Protocol):
    """Codes [..., rows, stored] and their scales [..., rows, ...] of a tensor of logical shape [..., rows, size]."""

    @property
    def values(self) -> torch.Tensor: ...

    @property
    def scales(self) -> torch.Tensor: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> Self: ...

    def submatrix(self, rows: slice, inputs: range) -> Self: ...

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


def linear_torch(x: torch.Tensor, weight: QuantizedTensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns x [rows, inputs] @ weight^T + bias, [rows, outputs] in x's dtype.

    Args:
        weight: [outputs, inputs]; bias: [outputs].
    """
    outputs, inputs = weight.shape
    step = max(1, CHUNK_ELEMENTS // inputs)
    if step >= outputs:
        return F.linear(x, weight.dequantize(x.dtype), bias)
    out = x.new_empty(len(x), outputs)
    for first in range(0, outputs, step):
        columns = slice(first, first + step)
        out[:, columns] = F.linear(x, weight[columns].dequantize(x.dtype), None if bias is None else bias[columns])
    return out


def moe_torch(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: QuantizedTensor,
    down: QuantizedTensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``moe.moe_reference`` with quantized weights; one expert is dequantized at a time."""
    up = wide(x.dtype)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up).clone()
    for expert in ids.unique().tolist():
        if expert < 0:
            continue
        row, choice = (ids == expert).nonzero(as_tuple=True)
        hidden = act_and_mul_reference(linear_torch(x[row], gate_up[expert], None), activation)
        outputs = linear_torch(hidden, down[expert], None)
        total.index_add_(0, row, weights[row, choice, None].to(up) * outputs.to(up))
    return store_result(total.to(x.dtype), out)

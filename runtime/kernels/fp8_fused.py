"""Norms and gates on a GPU whose results are rounded to eight bits as they are made, for the products that take them:
these find what was rounded beside the result (``fp8.rounded``)."""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, gated
from runtime.kernels.fp8 import LARGEST, LEAST, beside, room, round_row
from runtime.kernels.triton_import import tl, triton


@triton.jit
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, values_ptr, scales_ptr, eps, SIZE: tl.constexpr,
    SIZE_P2: tl.constexpr, ADD: tl.constexpr, WEIGHTED: tl.constexpr, LARGEST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """One program a row; ``rms_norm._rms_norm``, and the row of eight bits."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    at, ok = row * SIZE + column, column < SIZE
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + at, mask=ok, other=0.0).to(tl.float32)
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + at, total, mask=ok)
        x = total.to(tl.float32)  # the norm sees the sum as it is kept
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps))
    if WEIGHTED:
        x = x * tl.load(weight_ptr + column, mask=ok, other=0.0).to(tl.float32)
    out = x.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, mask=ok)
    round_row(out.to(tl.float32), values_ptr + at, scales_ptr + row, ok, LARGEST, LEAST)


@triton.jit
def _gate_mul(
    gate_up_ptr, out_ptr, values_ptr, scales_ptr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr, GELU: tl.constexpr,
    LARGEST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_P2)
    ok = column < WIDTH
    gate = tl.load(gate_up_ptr + row * 2 * WIDTH + column, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * WIDTH + WIDTH + column, mask=ok, other=0.0).to(tl.float32)
    out = gated(gate, up, GELU).to(out_ptr.dtype.element_ty)
    at = row * WIDTH + column
    tl.store(out_ptr + at, out, mask=ok)
    round_row(out.to(tl.float32), values_ptr + at, scales_ptr + row, ok, LARGEST, LEAST)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """``rms_norm.rms_norm``."""
    out = torch.empty_like(x)
    return _normed(x, x, weight, out, out, eps, add=False)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``rms_norm.add_rms_norm``."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    return _normed(x, residual, weight, out, total, eps, add=True), total


def _normed(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor, total: torch.Tensor,
    eps: float, *, add: bool,
) -> torch.Tensor:  # fmt: skip
    size, made = x.shape[1], room(x)
    _rms_norm[(len(x),)](
        x, residual, x if weight is None else weight, out, total, made.values, made.scales, eps, SIZE=size,
        SIZE_P2=triton.next_power_of_2(size), ADD=add, WEIGHTED=weight is not None, LARGEST=LARGEST, LEAST=LEAST,
        num_warps=8 if size > 2048 else 4,
    )  # fmt: skip
    return beside(out, made)


def gate_mul(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """``gate.gate_mul``."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    made = room(out)
    _gate_mul[(rows,)](
        gate_up, out, made.values, made.scales, WIDTH=width, WIDTH_P2=triton.next_power_of_2(width),
        GELU=activation == "gelu_tanh", LARGEST=LARGEST, LEAST=LEAST,
        num_warps=min(16, max(1, triton.next_power_of_2(width) // 512)),
    )  # fmt: skip
    return beside(out, made)

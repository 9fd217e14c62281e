"""RMSNorm and gated activation that also quantize their output to fp8, for the GEMM that follows
(``fp8.quantized_of``).
"""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, act_mul
from runtime.kernels.fp8 import FP8_MAX, MIN_SCALE, attach_quantized, empty_fp8, store_quantized_row
from runtime.kernels.triton_import import tl, triton


@triton.jit
def _rms_norm_quant(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, values_ptr, scales_ptr, eps, SIZE: tl.constexpr,
    SIZE_P2: tl.constexpr, ADD: tl.constexpr, WEIGHTED: tl.constexpr, FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """One program per row: ``layernorm._rms_norm`` plus the quantized row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    at, ok = row * SIZE + column, column < SIZE
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + at, mask=ok, other=0.0).to(tl.float32)
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + at, total, mask=ok)
        x = total.to(tl.float32)  # the norm's input is the rounded sum
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps))
    if WEIGHTED:
        x = x * tl.load(weight_ptr + column, mask=ok, other=0.0).to(tl.float32)
    out = x.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, mask=ok)
    store_quantized_row(out.to(tl.float32), values_ptr + at, scales_ptr + row, ok, FP8_MAX, MIN_SCALE)


@triton.jit
def _act_and_mul_quant(
    gate_up_ptr, out_ptr, values_ptr, scales_ptr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr, GELU: tl.constexpr,
    FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_P2)
    ok = column < WIDTH
    gate = tl.load(gate_up_ptr + row * 2 * WIDTH + column, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * WIDTH + WIDTH + column, mask=ok, other=0.0).to(tl.float32)
    out = act_mul(gate, up, GELU).to(out_ptr.dtype.element_ty)
    at = row * WIDTH + column
    tl.store(out_ptr + at, out, mask=ok)
    store_quantized_row(out.to(tl.float32), values_ptr + at, scales_ptr + row, ok, FP8_MAX, MIN_SCALE)


def rms_norm_quant(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """``layernorm.rms_norm`` with the fp8 output attached."""
    out = torch.empty_like(x)
    return _launch_rms_norm(x, x, weight, out, out, eps, add=False)


def add_rms_norm_quant(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``layernorm.add_rms_norm`` with the fp8 output attached."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    return _launch_rms_norm(x, residual, weight, out, total, eps, add=True), total


def _launch_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor, total: torch.Tensor,
    eps: float, *, add: bool,
) -> torch.Tensor:  # fmt: skip
    size, quantized = x.shape[1], empty_fp8(x)
    _rms_norm_quant[(len(x),)](
        x, residual, x if weight is None else weight, out, total, quantized.values, quantized.scales, eps, SIZE=size,
        SIZE_P2=triton.next_power_of_2(size), ADD=add, WEIGHTED=weight is not None, FP8_MAX=FP8_MAX,
        MIN_SCALE=MIN_SCALE, num_warps=8 if size > 2048 else 4,
    )  # fmt: skip
    return attach_quantized(out, quantized)


def act_and_mul_quant(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """``activation.act_and_mul`` with the fp8 output attached."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    quantized = empty_fp8(out)
    _act_and_mul_quant[(rows,)](
        gate_up, out, quantized.values, quantized.scales, WIDTH=width, WIDTH_P2=triton.next_power_of_2(width),
        GELU=activation == "gelu_tanh", FP8_MAX=FP8_MAX, MIN_SCALE=MIN_SCALE,
        num_warps=min(16, max(1, triton.next_power_of_2(width) // 512)),
    )  # fmt: skip
    return attach_quantized(out, quantized)

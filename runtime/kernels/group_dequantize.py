"""Dequantizes a group-quantized matrix on a GPU, for the 16-bit library GEMM with many rows."""

from __future__ import annotations

import torch

from runtime.kernels.group_quantized import GroupQuantized
from runtime.kernels.group_quantized_codes import to_float
from runtime.kernels.triton_import import tl, triton

ROWS, COLUMNS = 32, 64  # per program; twice as many columns for int4


@triton.jit
def _dequantize(
    values_ptr, scales_ptr, out_ptr, rows,
    SIZE: tl.constexpr, STORED: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, FOUR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program: [ROWS, COLUMNS] of the stored codes."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    stored = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = (row < rows)[:, None] & (stored < STORED)[None, :]
    wide = row.to(tl.int64)[:, None]
    codes = tl.load(values_ptr + wide * STORED + stored[None, :], mask=ok, other=0.0)
    out_at = out_ptr + wide * SIZE
    if FOUR:
        group = stored // (GROUP // 2)
        first = group * GROUP + stored % (GROUP // 2)
        scale = tl.load(scales_ptr + wide * GROUPS + group[None, :], mask=ok, other=0.0)
        low, high = to_float(codes & 15, tl.float32) * scale, to_float(codes >> 4, tl.float32) * scale
        out_dtype: tl.constexpr = out_ptr.dtype.element_ty
        tl.store(out_at + first[None, :], low.to(out_dtype), mask=ok & (first < SIZE)[None, :])
        second = first + GROUP // 2
        tl.store(out_at + second[None, :], high.to(out_dtype), mask=ok & (second < SIZE)[None, :])
    else:
        scale = tl.load(scales_ptr + wide * GROUPS + (stored // GROUP)[None, :], mask=ok, other=0.0)
        tl.store(out_at + stored[None, :], (codes.to(tl.float32) * scale).to(out_ptr.dtype.element_ty), mask=ok)


def dequantize(weight: GroupQuantized, dtype: torch.dtype) -> torch.Tensor:
    """``GroupQuantized.dequantize`` of contiguous [rows, size]."""
    (rows, size), stored = weight.shape, weight.values.shape[-1]
    out = torch.empty(rows, size, dtype=dtype, device=weight.values.device)
    _dequantize[(triton.cdiv(rows, ROWS), triton.cdiv(stored, COLUMNS))](
        weight.values, weight.scales, out, rows, SIZE=size, STORED=stored, GROUP=weight.group,
        GROUPS=weight.scales.shape[-1], FOUR=weight.values.dtype == torch.uint8, ROWS=ROWS, COLUMNS=COLUMNS,
        num_warps=4,
    )  # fmt: skip
    return out

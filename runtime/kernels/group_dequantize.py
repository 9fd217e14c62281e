"""A matrix of few bits made whole on a GPU: with many rows the vendor's product of 16 bits is worth it."""

from __future__ import annotations

import torch

from runtime.kernels.group_quantized import Grouped
from runtime.kernels.group_quantized_codes import number
from runtime.kernels.triton_import import tl, triton

ROWS, COLUMNS = 32, 64  # of a program; two times as many columns where a code has four bits


@triton.jit
def _whole(
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
        low, high = number(codes & 15, tl.float32) * scale, number(codes >> 4, tl.float32) * scale
        kind: tl.constexpr = out_ptr.dtype.element_ty
        tl.store(out_at + first[None, :], low.to(kind), mask=ok & (first < SIZE)[None, :])
        second = first + GROUP // 2
        tl.store(out_at + second[None, :], high.to(kind), mask=ok & (second < SIZE)[None, :])
    else:
        scale = tl.load(scales_ptr + wide * GROUPS + (stored // GROUP)[None, :], mask=ok, other=0.0)
        tl.store(out_at + stored[None, :], (codes.to(tl.float32) * scale).to(out_ptr.dtype.element_ty), mask=ok)


def whole(weight: Grouped, dtype: torch.dtype) -> torch.Tensor:
    """``Grouped.whole`` of contiguous [rows, size]."""
    (rows, size), stored = weight.shape, weight.values.shape[-1]
    out = torch.empty(rows, size, dtype=dtype, device=weight.values.device)
    _whole[(triton.cdiv(rows, ROWS), triton.cdiv(stored, COLUMNS))](
        weight.values, weight.scales, out, rows, SIZE=size, STORED=stored, GROUP=weight.group,
        GROUPS=weight.scales.shape[-1], FOUR=weight.values.dtype == torch.uint8, ROWS=ROWS, COLUMNS=COLUMNS,
        num_warps=4,
    )  # fmt: skip
    return out

"""A linear layer on a GPU whose weights and rows have eight bits: rows are rounded as they come, each with a scale of
its own, and scales come in after the last product."""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.fp8 import Fp8, rounded
from runtime.kernels.tma import box, boxes, is_described
from runtime.kernels.triton_import import tl, triton


@triton.jit(do_not_specialize=["rows"])  # else each new value may compile again
def _linear(
    x_ptr, x_scales_ptr, weights, scales_ptr, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, BIASED: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS outputs of ROWS rows. The weights are the operand that the matrix unit takes 64 rows of, so
    that few rows cost no more than they are."""
    part, first = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for start in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        weight = box(weights, part, start, OUTPUTS, INPUTS, COLUMNS, DEPTH, DESCRIBED)
        x = box(x_ptr, first, start, rows, INPUTS, ROWS, DEPTH, False)
        acc = tl.dot(weight, tl.trans(x), acc)
    row, column = first + tl.arange(0, ROWS), part + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    acc = acc * tl.load(scales_ptr + column, mask=column_ok, other=0.0)[:, None]
    acc = acc * tl.load(x_scales_ptr + row, mask=row_ok, other=0.0)[None, :]
    if BIASED:
        acc += tl.load(bias_ptr + column, mask=column_ok, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + row.to(tl.int64)[None, :] * OUTPUTS + column[:, None]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_ok[None, :] & column_ok[:, None])


def linear(x: torch.Tensor, weight: Fp8, bias: torch.Tensor | None, *, fixed: bool = False) -> torch.Tensor:
    """``fp8_torch.linear_torch`` for contiguous [rows, inputs], to the precision of eight bits on both sides; no host
    synchronisation, deterministic. `fixed`: a row's bits do not depend on the others."""
    return run(rounded(x), weight, bias, x.dtype, fixed=fixed)


def run(x: Fp8, weight: Fp8, bias: torch.Tensor | None, dtype: torch.dtype, *, fixed: bool = False) -> torch.Tensor:
    """[rows, inputs] that are rounded already -> [rows, outputs] of `dtype`."""
    (count, inputs), outputs = x.values.shape, len(weight.values)
    if not fixed and dtype == torch.bfloat16 and count * outputs >= MANY and inputs % 16 == 0 and outputs % 16 == 0:
        scales = x.scales[:, None], weight.scales[None, :]
        return torch._scaled_mm(
            x.values, weight.values.t(), *scales, bias, out_dtype=dtype, use_fast_accum=True
        )  # fmt: skip
    out = torch.empty(count, outputs, dtype=dtype, device=x.values.device)
    how = tile_sizes(count, inputs, fixed=fixed)
    weights = boxes(weight.values, how.columns, how.depth)
    _linear[(triton.cdiv(outputs, how.columns), triton.cdiv(count, how.rows))](
        x.values, x.scales, weights, weight.scales, weight.scales if bias is None else bias, out, count,
        INPUTS=inputs, OUTPUTS=outputs, ROWS=how.rows, COLUMNS=how.columns, DEPTH=how.depth, STAGES=how.stages,
        BIASED=bias is not None, DESCRIBED=is_described(weights), num_warps=how.warps,
    )  # fmt: skip
    return out


MANY = 1024 * 2048  # results from which on the vendor's product is faster, whose tiles are large


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    stages: int
    warps: int = 4


def tile_sizes(rows: int, inputs: int, *, fixed: bool = False) -> Tile:
    """`fixed`: where the vendor's product does not take over from these. Sums are alike in all of them."""
    depth = max(32, triton.next_power_of_2(inputs))
    if rows <= 32:
        return Tile(16, 64, min(128, depth), 6)
    if fixed and rows > 512:
        return Tile(128, 128, min(128, depth), 3, 8)
    return Tile(64, 64, min(256, depth), 3) if rows <= 512 else Tile(128, 64, min(128, depth), 4)

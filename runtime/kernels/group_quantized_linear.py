"""A linear layer on a GPU whose weights have few bits and whose rows have sixteen."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.group_dequantize import whole
from runtime.kernels.group_quantized import Grouped
from runtime.kernels.group_quantized_gemm import product
from runtime.kernels.tma import boxes, is_described
from runtime.kernels.triton_import import tl, triton


@triton.jit(do_not_specialize=["rows"])  # else each new value may compile again
def _linear(
    x_ptr, weights, scales_ptr, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr, FOUR: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, BIASED: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS outputs of ROWS rows."""
    column_part, first = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    row, column = first + tl.arange(0, ROWS), column_part + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    acc = product(
        x_ptr, row, row_ok, weights, scales_ptr, column_part, OUTPUTS, INPUTS, GROUP, FOUR, COLUMNS, ROWS, DEPTH,
        STAGES, DESCRIBED,
    )  # fmt: skip
    if BIASED:
        acc += tl.load(bias_ptr + column, mask=column_ok, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + row.to(tl.int64)[None, :] * OUTPUTS + column[:, None]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_ok[None, :] & column_ok[:, None])


def linear(
    x: torch.Tensor, weight: Grouped, bias: torch.Tensor | None, *, fixed: bool = False, tile: Tile | None = None
) -> torch.Tensor:
    """``packed_torch.linear_torch`` for contiguous [rows, inputs], summed in float32; no host synchronisation,
    deterministic. `fixed`: a row's bits do not depend on the others. `tile`: if not as suits the number of rows."""
    (count, inputs), outputs = x.shape, weight.shape[0]
    if not fixed and count >= MANY and x.element_size() == 2:
        return F.linear(x, whole(weight, x.dtype), bias)
    out = x.new_empty(count, outputs)
    how = tile or tile_sizes(count, weight, x.element_size(), fixed=fixed)
    four = weight.values.dtype == torch.uint8
    weights = boxes(weight.values, how.columns, how.depth // 2 if four else how.depth)
    _linear[(triton.cdiv(outputs, how.columns), triton.cdiv(count, how.rows))](
        x, weights, weight.scales, weight.scales if bias is None else bias, out, count, INPUTS=inputs, OUTPUTS=outputs,
        GROUP=group_of(weight), FOUR=four, ROWS=how.rows, COLUMNS=how.columns, DEPTH=how.depth, STAGES=how.stages,
        BIASED=bias is not None, DESCRIBED=is_described(weights), num_warps=how.warps,
    )  # fmt: skip
    return out


def group_of(weight: Grouped) -> int:
    """As `product` takes it: 0 where all of a row has one scale."""
    return 0 if weight.scales.shape[-1] == 1 and weight.values.dtype != torch.uint8 else weight.group


MANY = 512  # rows from which on it is quicker to make the weight whole


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    stages: int
    warps: int = 4


def tile_sizes(rows: int, weight: Grouped, element_size: int, *, fixed: bool = False) -> Tile:
    """`fixed`: where the vendor's product does not take over from these. All of a weight's tiles sum alike: they have
    one depth."""
    depth = depth_of(weight)
    if element_size == 4:  # no matrix unit of full precision: keep within registers
        return Tile(16, 32, min(64, depth) if group_of(weight) == 0 else depth, 2)
    if rows <= 128:
        return Tile(16, 64, depth, 4) if rows <= 32 else Tile(32, 64, depth, 4)
    if fixed and rows > 512:
        return Tile(128, 128, depth, 3, 8)
    return Tile(64, 64, depth, 4)


def depth_of(weight: Grouped) -> int:
    """How much of a row a program takes at a time: a group, where groups have scales of their own."""
    if group_of(weight) == 0:
        return min(128, max(32, triton.next_power_of_2(weight.size)))
    return weight.group

"""Linear layer on a GPU with group-quantized weights and 16-bit rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.group_dequantize import dequantize
from runtime.kernels.group_quantized import GroupQuantized
from runtime.kernels.group_quantized_gemm import group_quantized_gemm
from runtime.kernels.tma import has_descriptor, make_descriptor
from runtime.kernels.triton_import import tl, triton


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _linear(
    x_ptr, weights, scales_ptr, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr, INT4: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, BIASED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS outputs of ROWS rows."""
    first_column, first_row = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    acc = group_quantized_gemm(
        x_ptr, row, row_ok, weights, scales_ptr, first_column, OUTPUTS, INPUTS, GROUP, INT4, COLUMNS, ROWS, DEPTH,
        STAGES, TMA,
    )  # fmt: skip
    if BIASED:
        acc += tl.load(bias_ptr + column, mask=column_ok, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + row.to(tl.int64)[None, :] * OUTPUTS + column[:, None]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_ok[None, :] & column_ok[:, None])


def linear(
    x: torch.Tensor,
    weight: GroupQuantized,
    bias: torch.Tensor | None,
    *,
    batch_invariant: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """``quant_reference.linear_torch`` for contiguous [rows, inputs], accumulated in float32; deterministic, no host
    sync.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows.
        tile: overrides `tile_sizes`.
    """
    (count, inputs), outputs = x.shape, weight.shape[0]
    if not batch_invariant and count >= DEQUANTIZE_ROWS and x.element_size() == 2:
        return F.linear(x, dequantize(weight, x.dtype), bias)
    out = x.new_empty(count, outputs)
    config = tile or tile_sizes(count, weight, x.element_size(), batch_invariant=batch_invariant)
    int4 = weight.values.dtype == torch.uint8
    weights = make_descriptor(weight.values, config.columns, config.depth // 2 if int4 else config.depth)
    _linear[(triton.cdiv(outputs, config.columns), triton.cdiv(count, config.rows))](
        x, weights, weight.scales, weight.scales if bias is None else bias, out, count, INPUTS=inputs, OUTPUTS=outputs,
        GROUP=group_size(weight), INT4=int4, ROWS=config.rows, COLUMNS=config.columns, DEPTH=config.depth,
        STAGES=config.stages, BIASED=bias is not None, TMA=has_descriptor(weights), num_warps=config.warps,
    )  # fmt: skip
    return out


def group_size(weight: GroupQuantized) -> int:
    """Inputs per scale, as `group_quantized_gemm` expects it: 0 if a row has one scale."""
    return 0 if weight.scales.shape[-1] == 1 and weight.values.dtype != torch.uint8 else weight.group


DEQUANTIZE_ROWS = 512  # from this number of rows, dequantizing the weight first is faster


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    stages: int
    warps: int = 4


def tile_sizes(rows: int, weight: GroupQuantized, element_size: int, *, batch_invariant: bool = False) -> Tile:
    """Selects the tile. All tiles of a weight have the same depth and therefore the same order of accumulation.

    Args:
        batch_invariant: the library GEMM is not used, so that tiles for many rows are needed.
    """
    depth = depth_of(weight)
    if element_size == 4:  # no full-precision tensor cores: keep within registers
        return Tile(16, 32, min(64, depth) if group_size(weight) == 0 else depth, 2)
    if rows <= 128:
        return Tile(16, 64, depth, 4) if rows <= 32 else Tile(32, 64, depth, 4)
    if batch_invariant and rows > 512:
        return Tile(128, 128, depth, 3, 8)
    return Tile(64, 64, depth, 4)


def depth_of(weight: GroupQuantized) -> int:
    """Inputs per iteration: one group if groups have their own scales."""
    if group_size(weight) == 0:
        return min(128, max(32, triton.next_power_of_2(weight.size)))
    return weight.group

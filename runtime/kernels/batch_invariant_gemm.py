"""Batch-invariant GEMM: the result of a row does not depend on the number of rows.

Every output is one sum over the inputs in ascending order on the same unit, for every tile size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.common import has_descriptor, make_descriptor, tl, tma_load, triton


class GemmTile(NamedTuple):
    """Tile sizes of one program, pipeline stages and warps."""

    rows: int
    columns: int  # output columns; the weights are the first operand (swap AB)
    depth: int
    stages: int
    warps: int = 4


@triton.jit
def store_outputs(
    acc, bias_ptr, out_ptr, row, column, row_ok, column_ok, OUTPUTS: tl.constexpr, BIASED: tl.constexpr
):  # fmt: skip
    """Stores an accumulator tile [columns, rows], plus the bias, to [rows, OUTPUTS]."""
    if BIASED:
        acc += tl.load(bias_ptr + column, mask=column_ok, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + row.to(tl.int64)[None, :] * OUTPUTS + column[:, None]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_ok[None, :] & column_ok[:, None])


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _gemm(
    x_desc, weights, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, BIASED: tl.constexpr, X_TMA: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS outputs of ROWS rows."""
    first_column, first_row = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for start in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        weight = tma_load(weights, first_column, start, OUTPUTS, INPUTS, COLUMNS, DEPTH, TMA)
        x = tma_load(x_desc, first_row, start, rows, INPUTS, ROWS, DEPTH, X_TMA)
        acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    store_outputs(acc, bias_ptr, out_ptr, row, column, row_ok, column_ok, OUTPUTS, BIASED)


def batch_invariant_gemm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None,
    tile: GemmTile | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns x @ weight^T + bias, accumulated in float32; the bits of a row depend only on that row and the weights.

    Args:
        x: [rows, inputs], float32, float16 or bfloat16; weight: [outputs, inputs]; bias: [outputs].
        dtype: of the result [rows, outputs]; x's dtype if None.
        tile: overrides `tile_sizes`.
    """
    x = x.contiguous()
    (rows, inputs), outputs = x.shape, len(weight)
    out = x.new_empty(rows, outputs, dtype=dtype)
    tile = tile or tile_sizes(rows, inputs, x.element_size())
    x_desc, weights = make_descriptor(x, tile.rows, tile.depth), make_descriptor(weight, tile.columns, tile.depth)
    _gemm[(triton.cdiv(outputs, tile.columns), triton.cdiv(rows, tile.rows))](
        x_desc, weights, weight if bias is None else bias, out, rows, INPUTS=inputs, OUTPUTS=outputs, ROWS=tile.rows,
        COLUMNS=tile.columns, DEPTH=tile.depth, STAGES=tile.stages, BIASED=bias is not None,
        X_TMA=has_descriptor(x_desc), TMA=has_descriptor(weights), num_warps=tile.warps,
    )  # fmt: skip
    return out


def tile_sizes(rows: int, inputs: int, element_size: int) -> GemmTile:
    """Selects the tile. All tiles of a dtype accumulate in the same order.

    float32 has no full-precision tensor cores and therefore one tile. The tensor cores of the other dtypes define the
    order of a sum along the depth, whatever the tile.
    """
    if element_size == 4:
        chosen = GemmTile(32, 32, 32, 2, 4)
    elif rows <= 32:
        chosen = GemmTile(32, 64, 128, 5, 4)
    elif rows <= 256:
        chosen = GemmTile(64, 64, 64, 6, 4)
    elif rows <= 2048:
        chosen = GemmTile(128, 128, 64, 4, 8)
    else:
        chosen = GemmTile(256, 128, 64, 3, 8)
    return chosen._replace(depth=min(chosen.depth, max(16, triton.next_power_of_2(inputs))))

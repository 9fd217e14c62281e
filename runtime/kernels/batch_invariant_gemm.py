"""A linear layer on a GPU whose bits do not depend on the number of rows: each result is one sum along the inputs, from
the first to the last, on the same unit, however rows are cut into tiles."""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.tma import box, boxes, is_described
from runtime.kernels.triton_import import tl, triton


class Tile(NamedTuple):
    rows: int
    columns: int  # of the result, the operand that the matrix unit takes 64 rows of
    depth: int
    stages: int
    warps: int


@triton.jit(do_not_specialize=["rows"])  # else each new value may compile again
def _product(
    given, weights, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, BIASED: tl.constexpr, GIVEN_DESCRIBED: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS outputs of ROWS rows."""
    part, first = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for start in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        weight = box(weights, part, start, OUTPUTS, INPUTS, COLUMNS, DEPTH, DESCRIBED)
        x = box(given, first, start, rows, INPUTS, ROWS, DEPTH, GIVEN_DESCRIBED)
        acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
    row, column = first + tl.arange(0, ROWS), part + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    if BIASED:
        acc += tl.load(bias_ptr + column, mask=column_ok, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + row.to(tl.int64)[None, :] * OUTPUTS + column[:, None]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_ok[None, :] & column_ok[:, None])


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:  # fmt: skip
    """[rows, inputs] times [outputs, inputs]^T, plus `bias` [outputs] -> [rows, outputs] of `dtype`, or x's; float32,
    float16 and bfloat16, summed in float32. A row's bits depend on it and the weights alone."""
    x = x.contiguous()
    (rows, inputs), outputs = x.shape, len(weight)
    out = x.new_empty(rows, outputs, dtype=dtype)
    how = tile or tile_sizes(rows, inputs, x.element_size())
    given, weights = boxes(x, how.rows, how.depth), boxes(weight, how.columns, how.depth)
    _product[(triton.cdiv(outputs, how.columns), triton.cdiv(rows, how.rows))](
        given, weights, weight if bias is None else bias, out, rows, INPUTS=inputs, OUTPUTS=outputs, ROWS=how.rows,
        COLUMNS=how.columns, DEPTH=how.depth, STAGES=how.stages, BIASED=bias is not None,
        GIVEN_DESCRIBED=is_described(given), DESCRIBED=is_described(weights), num_warps=how.warps,
    )  # fmt: skip
    return out


def tile_sizes(rows: int, inputs: int, element_size: int) -> Tile:
    """float32 has no matrix unit of full precision, and one tile; the others' sums are the unit's own along the depth,
    whichever of these tiles they are in."""
    if element_size == 4:
        chosen = Tile(32, 32, 32, 2, 4)
    elif rows <= 32:
        chosen = Tile(32, 64, 128, 5, 4)
    elif rows <= 256:
        chosen = Tile(64, 64, 64, 6, 4)
    elif rows <= 2048:
        chosen = Tile(128, 128, 64, 4, 8)
    else:
        chosen = Tile(256, 128, 64, 3, 8)
    return chosen._replace(depth=min(chosen.depth, max(16, triton.next_power_of_2(inputs))))

"""Conversion of int4 codes to floating point, exactly and without scales, on a GPU."""

from __future__ import annotations

from runtime.kernels.triton_import import tl, triton


@triton.jit
def to_float(code, dtype: tl.constexpr):
    """uint8 code from 0 to 15 -> code - 8.

    The code is placed in the lowest mantissa bits of 128 (bfloat16) or 1024 (float16), which avoids slow conversions.
    """
    if dtype == tl.bfloat16:
        return (code.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0
    elif dtype == tl.float16:
        return (code.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0
    else:
        return code.to(dtype) - 8.0


@triton.jit
def load_rows(x_ptr, row, ok, column, SIZE: tl.constexpr, COLUMNS: tl.constexpr, MULTIPLE: tl.constexpr):
    """Loads [rows, COLUMNS] of a matrix of SIZE columns from `column` on; 0 where a row is not `ok` and past the
    columns.

    MULTIPLE: no load exceeds SIZE columns.
    """
    columns = column + tl.arange(0, COLUMNS)
    inside = ok[:, None]
    if not MULTIPLE:
        inside = inside & (columns < SIZE)[None, :]
    return tl.load(x_ptr + row.to(tl.int64)[:, None] * SIZE + columns[None, :], mask=inside, other=0.0)

"""On a GPU: how codes of few bits become numbers that the matrix unit takes, exactly and without a scale."""

from __future__ import annotations

from runtime.kernels.triton_import import tl, triton


@triton.jit
def number(code, like: tl.constexpr):
    """uint8 from 0 to 15 -> the number that is 8 less. Sixteen bits hold 128 or 1024 and a code in the lowest ones of
    their mantissa, so that no conversion is needed, which is what takes long."""
    if like == tl.bfloat16:
        return (code.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0
    elif like == tl.float16:
        return (code.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0
    else:
        return code.to(like) - 8.0


@triton.jit
def rows_of(x_ptr, row, ok, column, SIZE: tl.constexpr, COLUMNS: tl.constexpr, MULTIPLE: tl.constexpr):
    """[rows, COLUMNS] of a matrix of SIZE columns from `column` on, 0 where a row is not `ok` and beyond the columns.
    MULTIPLE: whatever is asked of SIZE columns ends with them."""
    columns = column + tl.arange(0, COLUMNS)
    inside = ok[:, None]
    if not MULTIPLE:
        inside = inside & (columns < SIZE)[None, :]
    return tl.load(x_ptr + row.to(tl.int64)[:, None] * SIZE + columns[None, :], mask=inside, other=0.0)

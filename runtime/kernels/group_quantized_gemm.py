"""Weights of few bits times rows of sixteen, on a GPU: what the kernels of linear layers and of experts both do.

The weights are the first operand: the matrix unit takes them from registers, where their codes become numbers. A
group's sum is scaled as a whole.
"""

from __future__ import annotations

from runtime.kernels.group_quantized_codes import number, rows_of
from runtime.kernels.tma import box
from runtime.kernels.triton_import import tl, triton


@triton.jit
def product(
    x_ptr, row, ok, weights, scales_ptr, weight_row, limit,
    SIZE: tl.constexpr, GROUP: tl.constexpr, FOUR: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """float32 [COLUMNS, ROWS]: weight rows from `weight_row` on, below `limit`, times the rows `row` of `x_ptr`
    [.., SIZE]. GROUP: numbers that share a scale, 0: all of a row; FOUR: they have four bits. DEPTH: what is taken at a
    time, a group where there are some."""
    like: tl.constexpr = x_ptr.dtype.element_ty
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    columns = weight_row + tl.arange(0, COLUMNS)
    whole: tl.constexpr = SIZE % DEPTH == 0
    half: tl.constexpr = DEPTH // 2
    groups: tl.constexpr = 1 if GROUP == 0 else (SIZE + GROUP - 1) // GROUP
    scales_at = scales_ptr + columns.to(tl.int64) * groups
    for start in tl.range(0, SIZE, DEPTH, num_stages=STAGES):
        if FOUR:
            codes = box(weights, weight_row, start // 2, limit, groups * half, COLUMNS, half, DESCRIBED)
            low = rows_of(x_ptr, row, ok, start, SIZE, half, whole)
            high = rows_of(x_ptr, row, ok, start + half, SIZE, half, whole)
            part = tl.dot(number(codes & 15, like), tl.trans(low), input_precision="ieee")
            part = tl.dot(number(codes >> 4, like), tl.trans(high), part, input_precision="ieee")
        else:
            codes = box(weights, weight_row, start, limit, SIZE, COLUMNS, DEPTH, DESCRIBED).to(like)
            x = rows_of(x_ptr, row, ok, start, SIZE, DEPTH, whole)
            if GROUP == 0:
                acc = tl.dot(codes, tl.trans(x), acc, input_precision="ieee")
            else:
                part = tl.dot(codes, tl.trans(x), input_precision="ieee")
        if GROUP != 0:
            scale = tl.load(scales_at + start // GROUP, mask=columns < limit, other=0.0)
            acc += part * scale[:, None]
    if GROUP == 0:
        acc = acc * tl.load(scales_at, mask=columns < limit, other=0.0)[:, None]
    return acc

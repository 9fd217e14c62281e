"""GEMM of group-quantized weights and 16-bit rows, for the linear and the MoE kernels.

The weights are the first operand: tensor cores read it from registers, where codes are converted. Each group's partial
sum is scaled once.
"""

from __future__ import annotations

from runtime.kernels.group_quantized_codes import load_rows, to_float
from runtime.kernels.tma import tma_load
from runtime.kernels.triton_import import tl, triton


@triton.jit
def group_quantized_gemm(
    x_ptr, row, ok, weights, scales_ptr, weight_row, limit,
    SIZE: tl.constexpr, GROUP: tl.constexpr, INT4: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """float32 [COLUMNS, ROWS]: weight rows from `weight_row` on, below `limit`, times the rows `row` of `x_ptr` [..,
    SIZE].

    GROUP: inputs that share a scale, 0 for one scale per row. INT4: codes have four bits. DEPTH: inputs per iteration,
    one group if there are groups.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    columns = weight_row + tl.arange(0, COLUMNS)
    multiple: tl.constexpr = SIZE % DEPTH == 0
    half: tl.constexpr = DEPTH // 2
    groups: tl.constexpr = 1 if GROUP == 0 else (SIZE + GROUP - 1) // GROUP
    scales_at = scales_ptr + columns.to(tl.int64) * groups
    for start in tl.range(0, SIZE, DEPTH, num_stages=STAGES):
        if INT4:
            codes = tma_load(weights, weight_row, start // 2, limit, groups * half, COLUMNS, half, TMA)
            low = load_rows(x_ptr, row, ok, start, SIZE, half, multiple)
            high = load_rows(x_ptr, row, ok, start + half, SIZE, half, multiple)
            group_acc = tl.dot(to_float(codes & 15, dtype), tl.trans(low), input_precision="ieee")
            group_acc = tl.dot(to_float(codes >> 4, dtype), tl.trans(high), group_acc, input_precision="ieee")
        else:
            codes = tma_load(weights, weight_row, start, limit, SIZE, COLUMNS, DEPTH, TMA).to(dtype)
            x = load_rows(x_ptr, row, ok, start, SIZE, DEPTH, multiple)
            if GROUP == 0:
                acc = tl.dot(codes, tl.trans(x), acc, input_precision="ieee")
            else:
                group_acc = tl.dot(codes, tl.trans(x), input_precision="ieee")
        if GROUP != 0:
            scale = tl.load(scales_at + start // GROUP, mask=columns < limit, other=0.0)
            acc += group_acc * scale[:, None]
    if GROUP == 0:
        acc = acc * tl.load(scales_at, mask=columns < limit, other=0.0)[:, None]
    return acc

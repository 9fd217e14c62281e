"""A linear layer on a GPU whose weights and rows have eight bits: rows are rounded as they come, each with a scale of
its own, and scales come in after the last product."""

from __future__ import annotations

import torch

from runtime.kernels.descriptors import box, boxes, is_described
from runtime.kernels.fp8 import Fp8, quantise
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


def linear(x: torch.Tensor, weight: Fp8, bias: torch.Tensor | None) -> torch.Tensor:
    """``fp8_torch.linear_torch`` for contiguous [rows, inputs], to the precision of eight bits on both sides; no host
    synchronisation, deterministic."""
    return run(quantise(x), weight, bias, x.dtype)


def run(x: Fp8, weight: Fp8, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """[rows, inputs] that are rounded already -> [rows, outputs] of `dtype`."""
    (count, inputs), outputs = x.values.shape, len(weight.values)
    if dtype == torch.bfloat16 and count >= MANY and inputs % 16 == 0 and outputs % 16 == 0:
        return torch._scaled_mm(
            x.values, weight.values.t(), x.scales[:, None], weight.scales[None, :], bias, out_dtype=dtype
        )
    out = torch.empty(count, outputs, dtype=dtype, device=x.values.device)
    rows, columns, depth, stages = tile_sizes(count, inputs)
    weights = boxes(weight.values, columns, depth)
    _linear[(triton.cdiv(outputs, columns), triton.cdiv(count, rows))](
        x.values, x.scales, weights, weight.scales, weight.scales if bias is None else bias, out, count,
        INPUTS=inputs, OUTPUTS=outputs, ROWS=rows, COLUMNS=columns, DEPTH=depth, STAGES=stages,
        BIASED=bias is not None, DESCRIBED=is_described(weights), num_warps=4,
    )  # fmt: skip
    return out


MANY = 1 << 30  # rows from which the vendor's product is faster


def tile_sizes(rows: int, inputs: int) -> tuple[int, int, int, int]:
    """(rows, columns, depth, stages) of a tile."""
    depth = min(128, max(32, triton.next_power_of_2(inputs)))
    if rows <= 16:
        return 16, 64, depth, 5
    if rows <= 512:
        return 32 if rows <= 32 else 64, 64, depth, 4
    return 128, 128, depth, 3

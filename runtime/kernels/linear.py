"""GEMMs of linear layers: batch-invariant for unquantized weights, and for quantized ones.

The batch-invariant GEMM: the result of a row does not depend on the number of rows. Every output is one sum over the
inputs in ascending order on the same unit, for every tile size.

Quantized weights are dequantized chunk by chunk in torch. On a GPU, fp8 weights have a scale per output, and rows are
quantized too; the scales are applied in the epilogue. Group-quantized weights are multiplied by 16-bit rows. In all
kernels the weights are the first operand: tensor cores read it from registers, where codes are converted. Each group's
partial sum is scaled once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.common import has_descriptor, make_descriptor, tl, tma_load, triton
from runtime.kernels.quantized_tensor import Fp8, GroupQuantized, QuantizedTensor, quantized_of

CHUNK_ELEMENTS = 1 << 22  # elements of a weight that are dequantized at once


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
    """Computes COLUMNS outputs of ROWS rows per program."""
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
        tile: overrides `batch_invariant_tile_sizes`.
    """
    x = x.contiguous()
    (rows, inputs), outputs = x.shape, len(weight)
    out = x.new_empty(rows, outputs, dtype=dtype)
    tile = tile or batch_invariant_tile_sizes(rows, inputs, x.element_size())
    x_desc, weights = make_descriptor(x, tile.rows, tile.depth), make_descriptor(weight, tile.columns, tile.depth)
    _gemm[(triton.cdiv(outputs, tile.columns), triton.cdiv(rows, tile.rows))](
        x_desc, weights, weight if bias is None else bias, out, rows, INPUTS=inputs, OUTPUTS=outputs, ROWS=tile.rows,
        COLUMNS=tile.columns, DEPTH=tile.depth, STAGES=tile.stages, BIASED=bias is not None,
        X_TMA=has_descriptor(x_desc), TMA=has_descriptor(weights), num_warps=tile.warps,
    )  # fmt: skip
    return out


def batch_invariant_tile_sizes(rows: int, inputs: int, element_size: int) -> GemmTile:
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


def quantized_linear_torch(
    x: torch.Tensor, weight: QuantizedTensor, bias: torch.Tensor | None,
    linear: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor] = F.linear,
) -> torch.Tensor:  # fmt: skip
    """Returns x [rows, inputs] @ weight^T + bias, [rows, outputs] in x's dtype.

    Args:
        weight: [outputs, inputs]; bias: [outputs].
        linear: GEMM of a dequantized chunk of the weight.
    """
    outputs, inputs = weight.shape
    step = max(1, CHUNK_ELEMENTS // inputs)
    if step >= outputs:
        return linear(x, weight.dequantize(x.dtype), bias)
    out = x.new_empty(len(x), outputs)
    for first in range(0, outputs, step):
        columns = slice(first, first + step)
        out[:, columns] = linear(x, weight[columns].dequantize(x.dtype), None if bias is None else bias[columns])
    return out


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _fp8_linear(
    x_ptr, x_scales_ptr, weights, scales_ptr, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, BIASED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Computes COLUMNS outputs of ROWS rows per program.

    The weights are the first operand (swap AB), which takes 64 rows at a time. So few rows of x need little padding.
    """
    first_column, first_row = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for start in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        weight = tma_load(weights, first_column, start, OUTPUTS, INPUTS, COLUMNS, DEPTH, TMA)
        x = tma_load(x_ptr, first_row, start, rows, INPUTS, ROWS, DEPTH, False)
        acc = tl.dot(weight, tl.trans(x), acc)
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    acc = acc * tl.load(scales_ptr + column, mask=column_ok, other=0.0)[:, None]
    acc = acc * tl.load(x_scales_ptr + row, mask=row_ok, other=0.0)[None, :]
    store_outputs(acc, bias_ptr, out_ptr, row, column, row_ok, column_ok, OUTPUTS, BIASED)


def fp8_linear(
    x: torch.Tensor, weight: Fp8, bias: torch.Tensor | None, *, batch_invariant: bool = False
) -> torch.Tensor:
    """Computes `quantized_linear_torch` for contiguous [rows, inputs], up to fp8 rounding.

    Deterministic, no host sync.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows.
    """
    (count, inputs), outputs, dtype = x.shape, len(weight.values), x.dtype
    rows = quantized_of(x)
    aligned = inputs % 16 == 0 and outputs % 16 == 0
    if not batch_invariant and dtype == torch.bfloat16 and aligned and count * outputs >= LIBRARY_GEMM_SIZE:
        scales = rows.scales[:, None], weight.scales[None, :]
        return torch._scaled_mm(
            rows.values, weight.values.t(), *scales, bias, out_dtype=dtype, use_fast_accum=True
        )  # fmt: skip
    out = x.new_empty(count, outputs)
    tile = fp8_tile_sizes(count, inputs, batch_invariant=batch_invariant)
    weights = make_descriptor(weight.values, tile.columns, tile.depth)
    _fp8_linear[(triton.cdiv(outputs, tile.columns), triton.cdiv(count, tile.rows))](
        rows.values, rows.scales, weights, weight.scales, weight.scales if bias is None else bias, out, count,
        INPUTS=inputs, OUTPUTS=outputs, ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, STAGES=tile.stages,
        BIASED=bias is not None, TMA=has_descriptor(weights), num_warps=tile.warps,
    )  # fmt: skip
    return out


LIBRARY_GEMM_SIZE = 1024 * 2048  # from this number of outputs, cuBLASLt with its larger tiles is faster


def fp8_tile_sizes(rows: int, inputs: int, *, batch_invariant: bool = False) -> GemmTile:
    """Selects the tile. All tiles accumulate in the same order.

    Args:
        batch_invariant: the library GEMM is not used, so that tiles for many rows are needed.
    """
    depth = max(32, triton.next_power_of_2(inputs))
    if rows <= 32:
        return GemmTile(16, 64, min(128, depth), 6)
    if batch_invariant and rows > 512:
        return GemmTile(128, 128, min(128, depth), 3, 8)
    return GemmTile(64, 64, min(256, depth), 3) if rows <= 512 else GemmTile(128, 64, min(128, depth), 4)


@triton.jit
def to_float(code, zero, dtype: tl.constexpr):
    """Converts uint8 codes from 0 to 15 to floats, exactly, and subtracts their zero points.

    The code is placed in the lowest mantissa bits of 128 (bfloat16) or 1024 (float16), which avoids slow conversions.

    zero: in `dtype`; None for 8.
    """
    if dtype == tl.bfloat16:
        offset: tl.constexpr = 128.0
        value = (code.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
    elif dtype == tl.float16:
        offset: tl.constexpr = 1024.0
        value = (code.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)
    else:
        offset: tl.constexpr = 0.0
        value = code.to(dtype)
    if zero is None:
        return value - (offset + 8.0)
    else:
        return value - (zero + offset)


@triton.jit
def four_bit_value(code, decode_ptr, zero, dtype: tl.constexpr):
    """Returns the values of uint8 codes from 0 to 15 in `dtype`. `decode_ptr`: see `group_quantized_gemm`."""
    if decode_ptr is None:
        return to_float(code, None, dtype)
    elif decode_ptr.dtype.element_ty.is_int():
        return to_float(code, zero, dtype)
    else:
        return tl.load(decode_ptr + code.to(tl.int32))


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


@triton.jit
def group_quantized_gemm(
    x_ptr, row, ok, weights, scales_ptr, decode_ptr, weight_row, limit,
    SIZE: tl.constexpr, GROUP: tl.constexpr, INT4: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Returns float32 [COLUMNS, ROWS]: weight rows from `weight_row` on, below `limit`, times the rows `row` of
    `x_ptr` [.., SIZE].

    decode_ptr: what codes mean. Integers (the dtype of the codes): a zero point per scale. Floats: the values of the 16
    codes, for NF4. None: the zero point is that of symmetric codes.

    GROUP: inputs that share a scale, 0 for one scale per row. INT4: codes have four bits. DEPTH: inputs per iteration,
    one group if there are groups.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    columns = weight_row + tl.arange(0, COLUMNS)
    multiple: tl.constexpr = SIZE % DEPTH == 0
    half: tl.constexpr = DEPTH // 2
    groups: tl.constexpr = 1 if GROUP == 0 else (SIZE + GROUP - 1) // GROUP
    first_group = columns.to(tl.int64) * groups
    for start in tl.range(0, SIZE, DEPTH, num_stages=STAGES):
        group = first_group if GROUP == 0 else first_group + start // GROUP
        zero = None
        if decode_ptr is not None and decode_ptr.dtype.element_ty.is_int():
            zero = tl.load(decode_ptr + group, mask=columns < limit, other=0).to(dtype)[:, None]
        if INT4:
            codes = tma_load(weights, weight_row, start // 2, limit, groups * half, COLUMNS, half, TMA)
            low = load_rows(x_ptr, row, ok, start, SIZE, half, multiple)
            high = load_rows(x_ptr, row, ok, start + half, SIZE, half, multiple)
            value = four_bit_value(codes & 15, decode_ptr, zero, dtype)
            group_acc = tl.dot(value, tl.trans(low), input_precision="ieee")
            value = four_bit_value(codes >> 4, decode_ptr, zero, dtype)
            group_acc = tl.dot(value, tl.trans(high), group_acc, input_precision="ieee")
        else:
            codes = tma_load(weights, weight_row, start, limit, SIZE, COLUMNS, DEPTH, TMA).to(dtype)
            if decode_ptr is not None:
                codes = codes - zero
            x = load_rows(x_ptr, row, ok, start, SIZE, DEPTH, multiple)
            if GROUP == 0:
                acc = tl.dot(codes, tl.trans(x), acc, input_precision="ieee")
            else:
                group_acc = tl.dot(codes, tl.trans(x), input_precision="ieee")
        if GROUP != 0:
            acc += group_acc * tl.load(scales_ptr + group, mask=columns < limit, other=0.0)[:, None]
    if GROUP == 0:
        acc = acc * tl.load(scales_ptr + first_group, mask=columns < limit, other=0.0)[:, None]
    return acc


DEQUANTIZE_TILE = 32, 64  # rows and columns per program; twice as many columns for int4


@triton.jit
def _dequantize(
    values_ptr, scales_ptr, decode_ptr, out_ptr, rows,
    SIZE: tl.constexpr, STORED: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, FOUR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Dequantizes [ROWS, COLUMNS] of the stored codes per program."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    stored = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = (row < rows)[:, None] & (stored < STORED)[None, :]
    wide = row.to(tl.int64)[:, None]
    codes = tl.load(values_ptr + wide * STORED + stored[None, :], mask=ok, other=0.0)
    out_at = out_ptr + wide * SIZE
    group = stored // (GROUP // 2 if FOUR else GROUP)
    at = wide * GROUPS + group[None, :]
    scale = tl.load(scales_ptr + at, mask=ok, other=0.0)
    zero = None
    if decode_ptr is not None and decode_ptr.dtype.element_ty.is_int():
        zero = tl.load(decode_ptr + at, mask=ok, other=0).to(tl.float32)
    out_dtype: tl.constexpr = out_ptr.dtype.element_ty
    if FOUR:
        first = group * GROUP + stored % (GROUP // 2)
        low = four_bit_value(codes & 15, decode_ptr, zero, tl.float32) * scale
        high = four_bit_value(codes >> 4, decode_ptr, zero, tl.float32) * scale
        tl.store(out_at + first[None, :], low.to(out_dtype), mask=ok & (first < SIZE)[None, :])
        second = first + GROUP // 2
        tl.store(out_at + second[None, :], high.to(out_dtype), mask=ok & (second < SIZE)[None, :])
    else:
        value = codes.to(tl.float32)
        if decode_ptr is not None:
            value -= zero
        tl.store(out_at + stored[None, :], (value * scale).to(out_dtype), mask=ok)


def dequantize(weight: GroupQuantized, dtype: torch.dtype) -> torch.Tensor:
    """Computes ``GroupQuantized.dequantize`` of contiguous [rows, size], with the columns as they are stored."""
    (rows, size), stored = weight.shape, weight.values.shape[-1]
    out = torch.empty(rows, size, dtype=dtype, device=weight.values.device)
    tile_rows, tile_columns = DEQUANTIZE_TILE
    _dequantize[(triton.cdiv(rows, tile_rows), triton.cdiv(stored, tile_columns))](
        weight.values, weight.scales, weight.decode_arg(torch.float32), out, rows, SIZE=size, STORED=stored,
        GROUP=weight.group, GROUPS=weight.scales.shape[-1], FOUR=weight.is_int4, ROWS=tile_rows, COLUMNS=tile_columns,
        num_warps=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _group_quantized_linear(
    x_ptr, weights, scales_ptr, decode_ptr, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr, INT4: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, BIASED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Computes COLUMNS outputs of ROWS rows per program."""
    first_column, first_row = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    acc = group_quantized_gemm(
        x_ptr, row, row_ok, weights, scales_ptr, decode_ptr, first_column, OUTPUTS, INPUTS, GROUP, INT4, COLUMNS, ROWS,
        DEPTH, STAGES, TMA,
    )  # fmt: skip
    store_outputs(acc, bias_ptr, out_ptr, row, column, row_ok, column_ok, OUTPUTS, BIASED)


def group_quantized_linear(
    x: torch.Tensor,
    weight: GroupQuantized,
    bias: torch.Tensor | None,
    *,
    batch_invariant: bool = False,
    tile: GemmTile | None = None,
) -> torch.Tensor:
    """Computes `quantized_linear_torch` for contiguous [rows, inputs], accumulated in float32.

    Deterministic, no host sync.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows.
        tile: overrides `group_quantized_tile_sizes`.
    """
    (count, inputs), outputs = x.shape, weight.shape[0]
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    if not batch_invariant and count >= DEQUANTIZE_ROWS and x.element_size() == 2:
        return F.linear(x, dequantize(weight, x.dtype), bias)
    out = x.new_empty(count, outputs)
    config = tile or group_quantized_tile_sizes(count, weight, x.element_size(), batch_invariant=batch_invariant)
    weights = make_descriptor(weight.values, config.columns, config.depth // 2 if weight.is_int4 else config.depth)
    _group_quantized_linear[(triton.cdiv(outputs, config.columns), triton.cdiv(count, config.rows))](
        x, weights, weight.scales, weight.decode_arg(x.dtype), weight.scales if bias is None else bias, out, count,
        INPUTS=inputs, OUTPUTS=outputs, GROUP=group_size(weight), INT4=weight.is_int4, ROWS=config.rows,
        COLUMNS=config.columns, DEPTH=config.depth, STAGES=config.stages, BIASED=bias is not None,
        TMA=has_descriptor(weights), num_warps=config.warps,
    )  # fmt: skip
    return out


def group_size(weight: GroupQuantized) -> int:
    """Returns the inputs per scale, as `group_quantized_gemm` expects it: 0 if a row has one scale."""
    return 0 if weight.scales.shape[-1] == 1 and not weight.is_int4 else weight.group


DEQUANTIZE_ROWS = 512  # from this number of rows, dequantizing the weight first is faster


def group_quantized_tile_sizes(
    rows: int, weight: GroupQuantized, element_size: int, *, batch_invariant: bool = False
) -> GemmTile:
    """Selects the tile. All tiles of a weight have the same depth and therefore the same order of accumulation.

    Args:
        batch_invariant: the library GEMM is not used, so that tiles for many rows are needed.
    """
    depth = depth_of(weight)
    if element_size == 4:  # no full-precision tensor cores: keep within registers
        # One stage: Triton 3.6 gives wrong results if it pipelines the lookup of NF4 values, loads of 4 bytes.
        return GemmTile(16, 32, min(64, depth) if group_size(weight) == 0 else depth, 1)
    if rows <= 128:
        return GemmTile(16, 64, depth, 4) if rows <= 32 else GemmTile(32, 64, depth, 4)
    if batch_invariant and rows > 512:
        return GemmTile(128, 128, depth, 3, 8)
    return GemmTile(64, 64, depth, 4)


def depth_of(weight: GroupQuantized) -> int:
    """Returns the inputs per iteration: one group if groups have their own scales."""
    if group_size(weight) == 0:
        return min(128, max(32, triton.next_power_of_2(weight.size)))
    return weight.group

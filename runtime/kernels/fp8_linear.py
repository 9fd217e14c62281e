"""fp8 linear layer on a GPU: e4m3 weights with a scale per output, activations quantized per row, scales in the
epilogue.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.fp8 import Fp8, quantized_of
from runtime.kernels.tma import has_descriptor, make_descriptor, tma_load
from runtime.kernels.triton_import import tl, triton


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _linear(
    x_ptr, x_scales_ptr, weights, scales_ptr, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, BIASED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS outputs of ROWS rows. The weights are the first operand (swap AB), so that few rows waste
    nothing.
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
    if BIASED:
        acc += tl.load(bias_ptr + column, mask=column_ok, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + row.to(tl.int64)[None, :] * OUTPUTS + column[:, None]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_ok[None, :] & column_ok[:, None])


def linear(x: torch.Tensor, weight: Fp8, bias: torch.Tensor | None, *, batch_invariant: bool = False) -> torch.Tensor:
    """``quant_reference.linear_torch`` for contiguous [rows, inputs], up to fp8 rounding; deterministic, no host sync.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows.
    """
    return scaled_gemm(quantized_of(x), weight, bias, x.dtype, batch_invariant=batch_invariant)


def scaled_gemm(
    x: Fp8, weight: Fp8, bias: torch.Tensor | None, dtype: torch.dtype, *, batch_invariant: bool = False
) -> torch.Tensor:
    """Returns [rows, outputs] of `dtype` for quantized [rows, inputs]."""
    (count, inputs), outputs = x.values.shape, len(weight.values)
    if (
        not batch_invariant
        and dtype == torch.bfloat16
        and count * outputs >= LIBRARY_GEMM_SIZE
        and inputs % 16 == 0
        and outputs % 16 == 0
    ):
        scales = x.scales[:, None], weight.scales[None, :]
        return torch._scaled_mm(
            x.values, weight.values.t(), *scales, bias, out_dtype=dtype, use_fast_accum=True
        )  # fmt: skip
    out = torch.empty(count, outputs, dtype=dtype, device=x.values.device)
    tile = tile_sizes(count, inputs, batch_invariant=batch_invariant)
    weights = make_descriptor(weight.values, tile.columns, tile.depth)
    _linear[(triton.cdiv(outputs, tile.columns), triton.cdiv(count, tile.rows))](
        x.values, x.scales, weights, weight.scales, weight.scales if bias is None else bias, out, count,
        INPUTS=inputs, OUTPUTS=outputs, ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, STAGES=tile.stages,
        BIASED=bias is not None, TMA=has_descriptor(weights), num_warps=tile.warps,
    )  # fmt: skip
    return out


LIBRARY_GEMM_SIZE = 1024 * 2048  # from this number of outputs, cuBLASLt with its larger tiles is faster


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    stages: int
    warps: int = 4


def tile_sizes(rows: int, inputs: int, *, batch_invariant: bool = False) -> Tile:
    """Selects the tile. All tiles accumulate in the same order.

    Args:
        batch_invariant: the library GEMM is not used, so that tiles for many rows are needed.
    """
    depth = max(32, triton.next_power_of_2(inputs))
    if rows <= 32:
        return Tile(16, 64, min(128, depth), 6)
    if batch_invariant and rows > 512:
        return Tile(128, 128, min(128, depth), 3, 8)
    return Tile(64, 64, min(256, depth), 3) if rows <= 512 else Tile(128, 64, min(128, depth), 4)

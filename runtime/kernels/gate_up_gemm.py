"""First GEMM of a dense MLP fused with its gated activation.

The weights, with interleaved gate and up rows, are the first operand (swap AB). A program multiplies 192 weight rows by
up to 256 rows, as two GEMMs because operand sizes are powers of two: that is what the registers of an SM hold, so that
rows are read as rarely as possible. A width of 12,288 makes 128 programs, one for all but four SMs of Hopper.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation, act_and_mul, act_and_mul_reference, store_gated_tile
from runtime.kernels.device import multiprocessors
from runtime.kernels.interleave import deinterleave, interleave_group
from runtime.kernels.tma import has_descriptor, make_descriptor, supports_tma, tma_load
from runtime.kernels.triton_import import tl, triton


class Tile(NamedTuple):
    """Tile sizes of one program, which occupies an SM alone."""

    rows: int
    columns: int  # weight rows, a multiple of 64
    extra_columns: int  # further weight rows of the second GEMM, a multiple of 64 or 0
    depth: int
    stages: int
    warps: int


TILES = {  # by number of rows, tiles for wide layers first
    32: (Tile(32, 128, 64, 128, 3, 4), Tile(32, 64, 0, 128, 5, 4)),
    64: (Tile(64, 128, 64, 64, 5, 4), Tile(64, 64, 0, 128, 4, 4)),
    128: (Tile(128, 128, 64, 64, 5, 8),),
    256: (Tile(256, 128, 64, 64, 4, 8), Tile(256, 128, 0, 64, 4, 8)),
}
MIN_UTILIZATION = 0.93  # useful part of all waves of programs; below it the library GEMM is faster
MEMORY_BOUND_ROWS = 64  # up to this number of rows the GEMM is memory-bound, and utilization does not matter
TYPICAL_ROWS = 2048  # rows by which the largest tile of a layer is selected, so that all large steps use the same


def fused_gate_up_reference(x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """act(gate) * up of x [rows, inputs] times weight [2 * width, inputs]^T -> [rows, width].

    Gate and up rows are interleaved (`interleave.py`).
    """
    return act_and_mul_reference(F.linear(x, deinterleave(weight)), activation)


@triton.jit(do_not_specialize=["rows", "heights"])  # avoids a recompilation per value
def _fused_gate_up(
    x_desc, weights, extra_weights, out_ptr, rows, row_tiles,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EXTRA_COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, X_TMA: tl.constexpr,
    TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows times COLUMNS + EXTRA_COLUMNS weight rows. Consecutive programs read the same weights."""
    first_weight_row, first_row = (
        tl.program_id(0) // row_tiles * (COLUMNS + EXTRA_COLUMNS),
        tl.program_id(0) % row_tiles * ROWS,
    )
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    if EXTRA_COLUMNS > 0:
        extra_acc = tl.zeros([EXTRA_COLUMNS, ROWS], tl.float32)
    for start in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        x = tl.trans(tma_load(x_desc, first_row, start, rows, INPUTS, ROWS, DEPTH, X_TMA))
        weight = tma_load(weights, first_weight_row, start, 2 * WIDTH, INPUTS, COLUMNS, DEPTH, TMA)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
        if EXTRA_COLUMNS > 0:
            weight = tma_load(
                extra_weights, first_weight_row + COLUMNS, start, 2 * WIDTH, INPUTS, EXTRA_COLUMNS, DEPTH, TMA
            )
            extra_acc = tl.dot(weight, x, extra_acc, input_precision="ieee")
    row, column = first_row + tl.arange(0, ROWS), first_weight_row // 2 + tl.arange(0, COLUMNS // 2)
    store_gated_tile(acc, out_ptr, row, rows, column, WIDTH, INTERLEAVE, ROWS, COLUMNS // 2, True, GELU)
    if EXTRA_COLUMNS > 0:
        column = (first_weight_row + COLUMNS) // 2 + tl.arange(0, EXTRA_COLUMNS // 2)
        store_gated_tile(extra_acc, out_ptr, row, rows, column, WIDTH, INTERLEAVE, ROWS, EXTRA_COLUMNS // 2, True, GELU)


def fused_gate_up(
    x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu", *, tile: Tile | None = None
) -> torch.Tensor:
    """`fused_gate_up_reference` for contiguous rows on a GPU.

    Args:
        tile: overrides `select_tile`, which may select the library GEMM.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    width = outputs // 2
    if tile is None and supports_tma(x) and supports_tma(weight):
        tile = select_tile(rows, outputs, multiprocessors(x.device))
    if tile is None:
        return act_and_mul(F.linear(x, weight), activation, interleave=interleave_group(width))
    out = x.new_empty(rows, width)
    depth = min(tile.depth, max(16, triton.next_power_of_2(inputs)))
    x_desc, weights = make_descriptor(x, tile.rows, depth), make_descriptor(weight, tile.columns, depth)
    extra_weights = make_descriptor(weight, tile.extra_columns, depth) if tile.extra_columns else weights
    row_tiles = triton.cdiv(rows, tile.rows)
    _fused_gate_up[(triton.cdiv(outputs, tile.columns + tile.extra_columns) * row_tiles,)](
        x_desc, weights, extra_weights, out, rows, row_tiles, INPUTS=inputs, WIDTH=width,
        INTERLEAVE=interleave_group(width), ROWS=tile.rows, COLUMNS=tile.columns, EXTRA_COLUMNS=tile.extra_columns,
        DEPTH=depth, STAGES=tile.stages, X_TMA=has_descriptor(x_desc), TMA=has_descriptor(weights),
        GELU=activation == "gelu_tanh", num_warps=tile.warps,
    )  # fmt: skip
    return out


def select_tile(rows: int, outputs: int, num_sms: int) -> Tile | None:
    """Selects a tile for this number of rows and weight rows on `num_sms` SMs; None if the library GEMM is faster."""
    rows_p2 = min(max(TILES), max(min(TILES), triton.next_power_of_2(rows)))
    tiles = TILES[rows_p2]
    if rows <= MEMORY_BOUND_ROWS:
        wide, narrow = tiles
        return wide if triton.cdiv(outputs, wide.columns + wide.extra_columns) >= MIN_UTILIZATION * num_sms else narrow
    if rows_p2 == max(TILES):
        tiles = tuple(tile for tile in tiles if _well_utilized(tile, TYPICAL_ROWS, outputs, num_sms))[:1]
    return next((tile for tile in tiles if _well_utilized(tile, rows, outputs, num_sms)), None)


def _well_utilized(tile: Tile, rows: int, outputs: int, num_sms: int) -> bool:
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.columns + tile.extra_columns)
    capacity = triton.cdiv(programs, num_sms) * num_sms * tile.rows * (tile.columns + tile.extra_columns)
    return rows * outputs >= MIN_UTILIZATION * capacity

"""Activation of gated MLPs: silu(gate) * up or gelu(gate) * up, as a kernel and as the epilogue of a GEMM.

The rows of gate and up may be interleaved: a group of gate rows, the matching group of up rows, and so on. A kernel
then reads both with one load, and finds a gate and its up value in the same thread of the GEMM's accumulator.

`fused_gate_up` is the first GEMM of a dense MLP with this epilogue. Its weights are the first operand (swap AB). A
program multiplies 192 weight rows by up to 256 rows, as two GEMMs because operand sizes are powers of two: that is what
the registers of an SM hold, so that rows are read as rarely as possible. A width of 12,288 makes 128 programs, one for
all but four SMs of Hopper.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.common import (
    has_descriptor,
    make_descriptor,
    multiprocessors,
    supports_tma,
    tl,
    tma_load,
    triton,
    wide,
)
from runtime.kernels.quantized_tensor import FP8_MAX, MIN_SCALE, attach_quantized, empty_fp8, store_quantized_row

Activation = Literal["silu", "gelu_tanh"]  # gelu_tanh: GELU with the tanh approximation


def act_and_mul_reference(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """Returns act(gate) * up, [rows, width] in the input's dtype, computed in float32 (float64 for float64).

    Args:
        gate_up: [rows, 2 * width], gate columns first.
    """
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, dim=-1)
    gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return (gate * up).to(gate_up.dtype)


@triton.jit
def act_mul(gate, up, GELU: tl.constexpr):
    """Returns act(gate) * up in float32. GELU uses x * (1 + tanh(z)) / 2 = x * sigmoid(2z)."""
    inner = gate
    if GELU:
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(inner) * up


@triton.jit
def store_gated_tile(
    acc, out_ptr, row, end, column,
    WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SWAP_AB: tl.constexpr,
    GELU: tl.constexpr,
):  # fmt: skip
    """Stores act(gate) * up of an accumulator tile whose gate and up rows are interleaved.

    Row `row` [ROWS] is stored if it is below `end`, at `column` [COLUMNS] of [.., WIDTH]. With SWAP_AB the accumulator
    is transposed: its last dimension is the row.
    """
    ok = row < end
    at = out_ptr + row.to(tl.int64) * WIDTH
    if SWAP_AB:
        runs = tl.permute(tl.reshape(acc, [COLUMNS // INTERLEAVE, 2, INTERLEAVE, ROWS]), (0, 2, 3, 1))
        gate, up = tl.split(runs)
        value = tl.reshape(act_mul(gate, up, GELU), [COLUMNS, ROWS]).to(out_ptr.dtype.element_ty)
        tl.store(at[None, :] + column[:, None], value, mask=(column < WIDTH)[:, None] & ok[None, :])
    else:
        runs = tl.permute(tl.reshape(acc, [ROWS, COLUMNS // INTERLEAVE, 2, INTERLEAVE]), (0, 1, 3, 2))
        gate, up = tl.split(runs)
        value = tl.reshape(act_mul(gate, up, GELU), [ROWS, COLUMNS]).to(out_ptr.dtype.element_ty)
        tl.store(at[:, None] + column[None, :], value, mask=ok[:, None] & (column < WIDTH)[None, :])


@triton.jit
def _act_and_mul(
    gate_up_ptr, out_ptr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr
):  # fmt: skip
    """Computes COLUMNS columns of one row per program. Groups of INTERLEAVE gate and up columns alternate."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < WIDTH
    at = gate_up_ptr + row * 2 * WIDTH
    if INTERLEAVE < WIDTH:
        at += column // INTERLEAVE * (2 * INTERLEAVE) + column % INTERLEAVE
    else:
        at += column
    gate = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(at + INTERLEAVE, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, act_mul(gate, up, GELU).to(out_ptr.dtype.element_ty), mask=ok)


def act_and_mul(
    gate_up: torch.Tensor, activation: Activation = "silu", *, interleave: int | None = None
) -> torch.Tensor:
    """Computes `act_and_mul_reference` for contiguous rows on a GPU.

    Args:
        interleave: number of consecutive gate columns if gate and up are interleaved; None: all gate
            columns come first.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    columns = min(1024, triton.next_power_of_2(width))
    _act_and_mul[(rows, triton.cdiv(width, columns))](
        gate_up, out, WIDTH=width, INTERLEAVE=interleave or width, COLUMNS=columns, GELU=activation == "gelu_tanh",
        num_warps=4
    )  # fmt: skip
    return out


INTERLEAVE = 8  # rows per group: the distance of two accumulator rows that one thread holds


def interleave_group(width: int) -> int:
    """Returns the rows per group in a layer of this width."""
    return math.gcd(width, INTERLEAVE)


def interleave_gate_up(gate_up: torch.Tensor) -> torch.Tensor:
    """Interleaves the rows of `gate_up` [..., 2 * width, inputs], which has all gate rows first."""
    width = gate_up.shape[-2] // 2
    groups = gate_up.unflatten(-2, (2, width // interleave_group(width), interleave_group(width)))
    return groups.transpose(-4, -3).flatten(-4, -2).contiguous()


def deinterleave(interleaved: torch.Tensor) -> torch.Tensor:
    """Inverts `interleave_gate_up`."""
    width = interleaved.shape[-2] // 2
    groups = interleaved.unflatten(-2, (width // interleave_group(width), 2, interleave_group(width)))
    return groups.transpose(-4, -3).flatten(-4, -2).contiguous()


def deinterleave_outputs(outputs: torch.Tensor) -> torch.Tensor:
    """Reorders outputs [..., 2 * width] of interleaved rows, so that all gate outputs come first."""
    return deinterleave(outputs.unsqueeze(-1)).squeeze(-1)


@lru_cache(maxsize=16)  # experts are loaded one by one, with the same few indices
def interleaved_index(rows: range, width: int, device: torch.device) -> torch.Tensor:
    """Returns the interleaved row index, int64 [len(rows)], of `rows` in the order of gate rows first."""
    row, group = torch.arange(rows.start, rows.stop, device=device), interleave_group(width)
    half_row = row % width
    return half_row // group * 2 * group + torch.where(row < width, 0, group) + half_row % group


@triton.jit
def _act_and_mul_quant(
    gate_up_ptr, out_ptr, values_ptr, scales_ptr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr, GELU: tl.constexpr,
    FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """Computes and quantizes one row per program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_P2)
    ok = column < WIDTH
    gate = tl.load(gate_up_ptr + row * 2 * WIDTH + column, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * WIDTH + WIDTH + column, mask=ok, other=0.0).to(tl.float32)
    out = act_mul(gate, up, GELU).to(out_ptr.dtype.element_ty)
    at = row * WIDTH + column
    tl.store(out_ptr + at, out, mask=ok)
    store_quantized_row(out.to(tl.float32), values_ptr + at, scales_ptr + row, ok, FP8_MAX, MIN_SCALE)


def act_and_mul_quant(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """Computes `act_and_mul`, and attaches the fp8 form to the output (``quantized_tensor.quantized_of``)."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    quantized = empty_fp8(out)
    _act_and_mul_quant[(rows,)](
        gate_up, out, quantized.values, quantized.scales, WIDTH=width, WIDTH_P2=triton.next_power_of_2(width),
        GELU=activation == "gelu_tanh", FP8_MAX=FP8_MAX, MIN_SCALE=MIN_SCALE,
        num_warps=min(16, max(1, triton.next_power_of_2(width) // 512)),
    )  # fmt: skip
    return attach_quantized(out, quantized)


class GateUpTile(NamedTuple):
    """Tile sizes of one program, which occupies an SM alone."""

    rows: int
    columns: int  # weight rows, a multiple of 64
    extra_columns: int  # further weight rows of the second GEMM, a multiple of 64 or 0
    depth: int
    stages: int
    warps: int


GATE_UP_TILES = {  # tiles by number of rows, those for wide layers first
    32: (GateUpTile(32, 128, 64, 128, 3, 4), GateUpTile(32, 64, 0, 128, 5, 4)),
    64: (GateUpTile(64, 128, 64, 64, 5, 4), GateUpTile(64, 64, 0, 128, 4, 4)),
    128: (GateUpTile(128, 128, 64, 64, 5, 8),),
    256: (GateUpTile(256, 128, 64, 64, 4, 8), GateUpTile(256, 128, 0, 64, 4, 8)),
}
MIN_UTILIZATION = 0.93  # useful part of all waves of programs; below it the library GEMM is faster
MEMORY_BOUND_ROWS = 64  # up to this number of rows the GEMM is memory-bound, and utilization does not matter
TYPICAL_ROWS = 2048  # rows by which the largest tile of a layer is selected, so that all large steps use the same


def fused_gate_up_reference(x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """Returns act(gate) * up of x [rows, inputs] times weight [2 * width, inputs]^T, [rows, width].

    Gate and up rows are interleaved.
    """
    return act_and_mul_reference(F.linear(x, deinterleave(weight)), activation)


@triton.jit(do_not_specialize=["rows", "row_tiles"])  # avoids a recompilation per value
def _fused_gate_up(
    x_desc, weights, extra_weights, out_ptr, rows, row_tiles,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EXTRA_COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, X_TMA: tl.constexpr,
    TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """Computes act(gate) * up of ROWS rows and COLUMNS + EXTRA_COLUMNS weight rows per program.

    Consecutive programs read the same weights.
    """
    first_weight_row = tl.program_id(0) // row_tiles * (COLUMNS + EXTRA_COLUMNS)
    first_row = tl.program_id(0) % row_tiles * ROWS
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
    x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu", *, tile: GateUpTile | None = None
) -> torch.Tensor:
    """Computes `fused_gate_up_reference` for contiguous rows on a GPU.

    Args:
        tile: overrides `select_gate_up_tile`, which may select the library GEMM.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    width = outputs // 2
    if tile is None and supports_tma(x) and supports_tma(weight):
        tile = select_gate_up_tile(rows, outputs, multiprocessors(x.device))
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


def select_gate_up_tile(rows: int, outputs: int, num_sms: int) -> GateUpTile | None:
    """Selects a tile for this number of rows and weight rows on `num_sms` SMs; None if the library GEMM is faster."""
    rows_p2 = min(max(GATE_UP_TILES), max(min(GATE_UP_TILES), triton.next_power_of_2(rows)))
    tiles = GATE_UP_TILES[rows_p2]
    if rows <= MEMORY_BOUND_ROWS:
        wide, narrow = tiles
        return wide if triton.cdiv(outputs, wide.columns + wide.extra_columns) >= MIN_UTILIZATION * num_sms else narrow
    if rows_p2 == max(GATE_UP_TILES):
        tiles = tuple(tile for tile in tiles if _well_utilized(tile, TYPICAL_ROWS, outputs, num_sms))[:1]
    return next((tile for tile in tiles if _well_utilized(tile, rows, outputs, num_sms)), None)


def _well_utilized(tile: GateUpTile, rows: int, outputs: int, num_sms: int) -> bool:
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.columns + tile.extra_columns)
    capacity = triton.cdiv(programs, num_sms) * num_sms * tile.rows * (tile.columns + tile.extra_columns)
    return rows * outputs >= MIN_UTILIZATION * capacity

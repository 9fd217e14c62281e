"""A dense feed-forward layer's first product and its gate, in one launch where that is quicker.

Weights, gate and up rows in turns, are the operand that the matrix unit takes 64 rows of. A program multiplies 192 of
them by up to 256 rows, as two products, since an operand's sizes are powers of two: that is what a multiprocessor's
registers hold, so that what all programs read of the rows is the least, and of a width of 12,288 it makes 128 programs,
one for all but four of Hopper's multiprocessors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation, gate_mul, gate_mul_reference, keep_gated
from runtime.kernels.device import multiprocessors
from runtime.kernels.interleave import gates_first, run_of
from runtime.kernels.tma import box, boxes, describable, is_described
from runtime.kernels.triton_import import tl, triton


class Tile(NamedTuple):
    """What a program takes. It has a multiprocessor for itself."""

    rows: int
    columns: int  # of the weights' rows, a multiple of 64,
    more: int  # and how many beside them, another one or 0
    depth: int
    stages: int
    warps: int


TILES = {  # by their height, what suits wide layers first
    32: (Tile(32, 128, 64, 128, 3, 4), Tile(32, 64, 0, 128, 5, 4)),
    64: (Tile(64, 128, 64, 64, 5, 4), Tile(64, 64, 0, 128, 4, 4)),
    128: (Tile(128, 128, 64, 64, 5, 8),),
    256: (Tile(256, 128, 64, 64, 4, 8), Tile(256, 128, 0, 64, 4, 8)),
}
FULL = 0.93  # of what the multiprocessors could do in as many rounds: below it the vendor's library is quicker
BYTES = 64  # rows up to which time is the weights' bytes, and programs need not be full
MANY = 2048  # rows by which a layer's highest tile is chosen, so that it has one for steps of all sizes


def gated_product_reference(x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """act(gate) * up of x [rows, inputs] times weight [2 * width, inputs]^T -> [rows, width].

    Gate and up rows are interleaved (`interleave.py`).
    """
    return gate_mul_reference(F.linear(x, gates_first(weight)), activation)


@triton.jit(do_not_specialize=["rows", "heights"])  # else each new value may compile again
def _gated_product(
    given, weights, others, out_ptr, rows, heights,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    MORE: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, GIVEN_DESCRIBED: tl.constexpr,
    DESCRIBED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: a tile of COLUMNS and MORE of the weights' rows and ROWS rows. Programs that follow each other have
    the same weights."""
    part, first = tl.program_id(0) // heights * (COLUMNS + MORE), tl.program_id(0) % heights * ROWS
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    if MORE > 0:
        beside = tl.zeros([MORE, ROWS], tl.float32)
    for start in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        x = tl.trans(box(given, first, start, rows, INPUTS, ROWS, DEPTH, GIVEN_DESCRIBED))
        weight = box(weights, part, start, 2 * WIDTH, INPUTS, COLUMNS, DEPTH, DESCRIBED)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
        if MORE > 0:
            weight = box(others, part + COLUMNS, start, 2 * WIDTH, INPUTS, MORE, DEPTH, DESCRIBED)
            beside = tl.dot(weight, x, beside, input_precision="ieee")
    row, column = first + tl.arange(0, ROWS), part // 2 + tl.arange(0, COLUMNS // 2)
    keep_gated(acc, out_ptr, row, rows, column, WIDTH, RUN, ROWS, COLUMNS // 2, True, GELU)
    if MORE > 0:
        column = (part + COLUMNS) // 2 + tl.arange(0, MORE // 2)
        keep_gated(beside, out_ptr, row, rows, column, WIDTH, RUN, ROWS, MORE // 2, True, GELU)


def gated_product(
    x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu", *, tile: Tile | None = None
) -> torch.Tensor:
    """`gated_product_reference` for contiguous rows on a GPU. `tile`: if not what suits the sizes, or the library."""
    (rows, inputs), outputs = x.shape, len(weight)
    width = outputs // 2
    if tile is None and describable(x) and describable(weight):
        tile = tile_for(rows, outputs, multiprocessors(x.device))
    if tile is None:
        return gate_mul(F.linear(x, weight), activation, run=run_of(width))
    out = x.new_empty(rows, width)
    depth = min(tile.depth, max(16, triton.next_power_of_2(inputs)))
    given, weights = boxes(x, tile.rows, depth), boxes(weight, tile.columns, depth)
    others = boxes(weight, tile.more, depth) if tile.more else weights
    heights = triton.cdiv(rows, tile.rows)
    _gated_product[(triton.cdiv(outputs, tile.columns + tile.more) * heights,)](
        given, weights, others, out, rows, heights, INPUTS=inputs, WIDTH=width, RUN=run_of(width), ROWS=tile.rows,
        COLUMNS=tile.columns, MORE=tile.more, DEPTH=depth, STAGES=tile.stages, GIVEN_DESCRIBED=is_described(given),
        DESCRIBED=is_described(weights), GELU=activation == "gelu_tanh", num_warps=tile.warps,
    )  # fmt: skip
    return out


def tile_for(rows: int, outputs: int, at_once: int) -> Tile | None:
    """For so many rows and rows of the weights, where `at_once` programs run. None: the library is quicker."""
    height = min(max(TILES), max(min(TILES), triton.next_power_of_2(rows)))
    tiles = TILES[height]
    if rows <= BYTES:
        wide, narrow = tiles
        return wide if triton.cdiv(outputs, wide.columns + wide.more) >= FULL * at_once else narrow
    if height == max(TILES):
        tiles = tuple(tile for tile in tiles if _full(tile, MANY, outputs, at_once))[:1]
    return next((tile for tile in tiles if _full(tile, rows, outputs, at_once)), None)


def _full(tile: Tile, rows: int, outputs: int, at_once: int) -> bool:
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.columns + tile.more)
    possible = triton.cdiv(programs, at_once) * at_once * tile.rows * (tile.columns + tile.more)
    return rows * outputs >= FULL * possible

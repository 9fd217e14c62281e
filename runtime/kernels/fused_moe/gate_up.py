"""First GEMM of the MoE layer on a GPU with the gated activation as epilogue, over the token-expert pairs of each
expert.

A tile has pairs of one expert. With few pairs per expert, reading the weights dominates, so the weights are the first
operand (swap AB), and the tile has as many columns as there are pairs: 16, 64, 128, or up to TAIL more, selected per
tile. With many pairs, arithmetic dominates, and pairs are the rows, 64 or 128.
"""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, store_gated_tile
from runtime.kernels.fused_moe.moe_align import is_tail_of_previous_tile
from runtime.kernels.fused_moe.tile_config import GemmConfig
from runtime.kernels.interleave import interleave_group
from runtime.kernels.tma import has_descriptor, make_descriptor, tma_load
from runtime.kernels.triton_import import tl, triton


@triton.jit
def _gate_up_tile(
    x_ptr, weights, hidden_ptr, order_ptr, first_pos, end_pos, expert, column_tile,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr,
    PAIRS: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    SWAP_AB: tl.constexpr, TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """PAIRS of one expert's pairs, and the TAIL behind them, if any; the tail always swaps AB."""
    depth = tl.arange(0, DEPTH)
    pos = first_pos + tl.arange(0, PAIRS)
    ok = pos < end_pos
    row = tl.load(order_ptr + pos, mask=ok, other=0) // TOP_K
    x_at = x_ptr + row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
    if TAIL > 0:
        tail_pos = first_pos + PAIRS + tl.arange(0, TAIL)
        tail_ok = tail_pos < end_pos
        row = tl.load(order_ptr + tail_pos, mask=tail_ok, other=0) // TOP_K
        y_at = x_ptr + row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
        tail_acc = tl.zeros([2 * COLUMNS, TAIL], tl.float32)
    weight_row = expert * (2 * WIDTH) + column_tile * (2 * COLUMNS)
    limit = (expert + 1) * (2 * WIDTH)
    if SWAP_AB:
        acc = tl.zeros([2 * COLUMNS, PAIRS], tl.float32)
    else:
        acc = tl.zeros([PAIRS, 2 * COLUMNS], tl.float32)
    for start in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
        weight = tma_load(weights, weight_row, start, limit, HIDDEN, 2 * COLUMNS, DEPTH, TMA)
        inside = tl.full([1, DEPTH], 1, tl.int1)
        if HIDDEN % DEPTH != 0:
            inside = (start + depth < HIDDEN)[None, :]
        x = tl.load(x_at + start, mask=ok[:, None] & inside, other=0.0)
        if SWAP_AB:
            acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
        if TAIL > 0:
            y = tl.load(y_at + start, mask=tail_ok[:, None] & inside, other=0.0)
            tail_acc = tl.dot(weight, tl.trans(y), tail_acc, input_precision="ieee")
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    store_gated_tile(acc, hidden_ptr, pos, end_pos, column, WIDTH, INTERLEAVE, PAIRS, COLUMNS, SWAP_AB, GELU)
    if TAIL > 0:
        store_gated_tile(tail_acc, hidden_ptr, tail_pos, end_pos, column, WIDTH, INTERLEAVE, TAIL, COLUMNS, True, GELU)


@triton.jit(do_not_specialize=["max_tiles"])  # avoids a recompilation per value
def _gate_up(
    x_ptr, weights, hidden_ptr, order_ptr, tiles_ptr, max_tiles,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, HEIGHT: tl.constexpr,
    TAIL: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, MIDDLE: tl.constexpr,
    HIGH: tl.constexpr, SWAP_AB: tl.constexpr, TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of its width; stores act(gate) * up sorted by expert."""
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first_pos, end_pos = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
    remaining = end_pos - first_pos
    if is_tail_of_previous_tile(tiles_ptr, tile, expert, remaining, TAIL):
        return
    if HEIGHT < 128:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first_pos, end_pos, expert, column_tile, TOP_K, HIDDEN, WIDTH,
            INTERLEAVE, HEIGHT, 0, COLUMNS, DEPTH, LOW, SWAP_AB, TMA, GELU,
        )  # fmt: skip
    elif SWAP_AB and remaining <= 16:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first_pos, end_pos, expert, column_tile, TOP_K, HIDDEN, WIDTH,
            INTERLEAVE, 16, 0, COLUMNS, DEPTH, LOW, SWAP_AB, TMA, GELU,
        )  # fmt: skip
    elif remaining <= 64:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first_pos, end_pos, expert, column_tile, TOP_K, HIDDEN, WIDTH,
            INTERLEAVE, 64, 0, COLUMNS, DEPTH, MIDDLE, SWAP_AB, TMA, GELU,
        )  # fmt: skip
    elif (remaining <= HEIGHT) | (remaining > HEIGHT + TAIL):
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first_pos, end_pos, expert, column_tile, TOP_K, HIDDEN, WIDTH,
            INTERLEAVE, HEIGHT, 0, COLUMNS, DEPTH, HIGH, SWAP_AB, TMA, GELU,
        )  # fmt: skip
    elif TAIL > 0:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first_pos, end_pos, expert, column_tile, TOP_K, HIDDEN, WIDTH,
            INTERLEAVE, HEIGHT, TAIL, COLUMNS, DEPTH, HIGH, SWAP_AB, TMA, GELU,
        )  # fmt: skip


def run_gate_up(
    x: torch.Tensor, gate_up: torch.Tensor, inner: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, top_k: int,
    height: int, config: GemmConfig, activation: Activation,
) -> None:  # fmt: skip
    """x [rows, hidden] -> inner [pairs, width], sorted by expert."""
    hidden, width, max_tiles = x.shape[1], inner.shape[1], tiles.shape[1]
    low, middle, high = config.stages
    weights = make_descriptor(gate_up.flatten(0, 1), 2 * config.columns, config.depth)
    _gate_up[(triton.cdiv(width, config.columns), max_tiles)](
        x, weights, inner, order, tiles, max_tiles, TOP_K=top_k, HIDDEN=hidden, WIDTH=width,
        INTERLEAVE=interleave_group(width), HEIGHT=height, TAIL=config.tail_rows(height), COLUMNS=config.columns,
        DEPTH=config.depth, LOW=low, MIDDLE=middle, HIGH=high, SWAP_AB=config.swap_ab, TMA=has_descriptor(weights),
        GELU=activation == "gelu_tanh", num_warps=config.warps,
    )  # fmt: skip

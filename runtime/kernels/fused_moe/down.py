"""Second GEMM of the MoE layer on a GPU: the down projection of each expert's token-expert pairs, tiled like the first
GEMM.
"""

from __future__ import annotations

import torch

from runtime.kernels.fused_moe.moe_align import AlignedTokens, is_tail_of_previous_tile
from runtime.kernels.fused_moe.persistent_down import run_persistent, use_persistent
from runtime.kernels.fused_moe.tile_config import GemmConfig
from runtime.kernels.tma import has_descriptor, make_descriptor, tma_load
from runtime.kernels.triton_import import tl, triton


@triton.jit
def _down_tile(
    hidden, tail, weights, pairs_ptr, order_ptr, first_pos, end_pos, expert, column_tile,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, SWAP_AB: tl.constexpr, TMA: tl.constexpr,
    HIDDEN_TMA: tl.constexpr,
):  # fmt: skip
    """One tile; as `gate_up._gate_up_tile`."""
    if SWAP_AB:
        acc = tl.zeros([COLUMNS, PAIRS], tl.float32)
    else:
        acc = tl.zeros([PAIRS, COLUMNS], tl.float32)
    if TAIL > 0:
        tail_acc = tl.zeros([COLUMNS, TAIL], tl.float32)
    weight_row, limit = expert * HIDDEN + column_tile * COLUMNS, (expert + 1) * HIDDEN
    for start in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
        weight = tma_load(weights, weight_row, start, limit, WIDTH, COLUMNS, DEPTH, TMA)
        h = tma_load(hidden, first_pos, start, end_pos, WIDTH, PAIRS, DEPTH, HIDDEN_TMA)
        if SWAP_AB:
            acc = tl.dot(weight, tl.trans(h), acc, input_precision="ieee")
        else:
            acc = tl.dot(h, tl.trans(weight), acc, input_precision="ieee")
        if TAIL > 0:
            h = tma_load(tail, first_pos + PAIRS, start, end_pos, WIDTH, TAIL, DEPTH, HIDDEN_TMA)
            tail_acc = tl.dot(weight, tl.trans(h), tail_acc, input_precision="ieee")
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    store_pairs(acc, pairs_ptr, order_ptr, first_pos + tl.arange(0, PAIRS), end_pos, column, HIDDEN, SWAP_AB)
    if TAIL > 0:
        store_pairs(
            tail_acc, pairs_ptr, order_ptr, first_pos + PAIRS + tl.arange(0, TAIL), end_pos, column, HIDDEN, True
        )


@triton.jit
def store_pairs(acc, pairs_ptr, order_ptr, pos, end_pos, column, HIDDEN: tl.constexpr, SWAP_AB: tl.constexpr):
    """Stores an accumulator tile, each token-expert pair at its own index."""
    ok = pos < end_pos
    pair = tl.load(order_ptr + pos, mask=ok, other=0).to(tl.int64)
    at = pairs_ptr + pair * HIDDEN
    value = acc.to(pairs_ptr.dtype.element_ty)
    if SWAP_AB:
        tl.store(at[None, :] + column[:, None], value, mask=(column < HIDDEN)[:, None] & ok[None, :])
    else:
        tl.store(at[:, None] + column[None, :], value, mask=ok[:, None] & (column < HIDDEN)[None, :])


@triton.jit(do_not_specialize=["max_tiles"])
def _down(
    hidden_ptr, middle, hidden, tail, weights, pairs_ptr, order_ptr, tiles_ptr, max_tiles,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr, SWAP_AB: tl.constexpr,
    TMA: tl.constexpr, HIDDEN_TMA: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of the hidden size, stored at each pair's index.

    `middle`, `hidden`, `tail`: descriptors of `hidden_ptr` with 64, HEIGHT and TAIL rows.
    """
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first_pos, end_pos = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
    remaining = end_pos - first_pos
    if is_tail_of_previous_tile(tiles_ptr, tile, expert, remaining, TAIL):
        return
    if HEIGHT < 128:
        _down_tile(
            hidden_ptr, tail, weights, pairs_ptr, order_ptr, first_pos, end_pos, expert, column_tile, HIDDEN, WIDTH,
            HEIGHT, 0, COLUMNS, DEPTH, LOW, SWAP_AB, TMA, False,
        )  # fmt: skip
    elif SWAP_AB and remaining <= 16:
        _down_tile(
            hidden_ptr, tail, weights, pairs_ptr, order_ptr, first_pos, end_pos, expert, column_tile, HIDDEN, WIDTH,
            16, 0, COLUMNS, DEPTH, LOW, SWAP_AB, TMA, False,
        )  # fmt: skip
    elif remaining <= 64:
        _down_tile(
            middle, tail, weights, pairs_ptr, order_ptr, first_pos, end_pos, expert, column_tile, HIDDEN, WIDTH,
            64, 0, COLUMNS, DEPTH, MIDDLE, SWAP_AB, TMA, HIDDEN_TMA,
        )  # fmt: skip
    elif (remaining <= HEIGHT) | (remaining > HEIGHT + TAIL):
        _down_tile(
            hidden, tail, weights, pairs_ptr, order_ptr, first_pos, end_pos, expert, column_tile, HIDDEN, WIDTH,
            HEIGHT, 0, COLUMNS, DEPTH, HIGH, SWAP_AB, TMA, HIDDEN_TMA,
        )  # fmt: skip
    elif TAIL > 0:
        _down_tile(
            hidden, tail, weights, pairs_ptr, order_ptr, first_pos, end_pos, expert, column_tile, HIDDEN, WIDTH,
            HEIGHT, TAIL, COLUMNS, DEPTH, HIGH, SWAP_AB, TMA, HIDDEN_TMA,
        )  # fmt: skip


def run_down(
    inner: torch.Tensor, down: torch.Tensor, pairs: torch.Tensor, aligned: AlignedTokens, config: GemmConfig
) -> None:  # fmt: skip
    """inner [pairs, width], sorted by expert -> pairs [pairs, hidden], in the order of rows and choices."""
    if use_persistent(aligned, config):
        run_persistent(inner, down, pairs, aligned, config)
        return
    width, hidden, max_tiles, height = inner.shape[1], pairs.shape[1], aligned.tiles.shape[1], aligned.rows
    low, middle, high = config.stages
    tail = config.tail_rows(height)
    weights = make_descriptor(down.flatten(0, 1), config.columns, config.depth)
    descs = [make_descriptor(inner, rows, config.depth) for rows in (64, height, tail or height)]
    _down[(triton.cdiv(hidden, config.columns), max_tiles)](
        inner, *descs, weights, pairs, aligned.order, aligned.tiles, max_tiles, HIDDEN=hidden, WIDTH=width,
        HEIGHT=height, TAIL=tail, COLUMNS=config.columns, DEPTH=config.depth, LOW=low, MIDDLE=middle, HIGH=high,
        SWAP_AB=config.swap_ab, TMA=has_descriptor(weights), HIDDEN_TMA=has_descriptor(descs[0]),
        num_warps=config.warps,
    )  # fmt: skip

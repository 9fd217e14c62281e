"""Persistent kernel of the second MoE GEMM, for experts with many pairs.

As many programs as fit on the device loop over the tiles, which overlaps the loads of the next tile with the epilogue
of the current one.
"""

from __future__ import annotations

import torch

from runtime.kernels.device import multiprocessors
from runtime.kernels.fused_moe.moe_align import AlignedTokens
from runtime.kernels.fused_moe.tile_config import GemmConfig
from runtime.kernels.tma import has_descriptor, make_descriptor, tma_load
from runtime.kernels.triton_import import tl, triton

PROGRAMS_PER_SM = 2  # resident programs per SM


def use_persistent(aligned: AlignedTokens, config: GemmConfig) -> bool:
    """Whether tiles are contiguous and pairs are the rows of the GEMM, where the persistent kernel is faster."""
    return not aligned.gaps and not config.swap_ab and aligned.rows >= 128


@triton.jit(do_not_specialize=["max_tiles"])
def _persistent_down(
    x_desc, weights, pairs_ptr, order_ptr, tiles_ptr, max_tiles,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, TILES_P2: tl.constexpr, TMA: tl.constexpr, X_TMA: tl.constexpr,
):  # fmt: skip
    """One program processes every n-th work item: a tile of one expert's pairs times COLUMNS of the hidden size.

    TILES_P2: at least `max_tiles`.
    """
    tiles = tl.arange(0, TILES_P2)
    num_used = tl.sum((tl.load(tiles_ptr + tiles, mask=tiles < max_tiles, other=-1) >= 0).to(tl.int32), 0)
    column_tiles: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS
    for work_item in tl.range(tl.program_id(0), num_used * column_tiles, tl.num_programs(0), flatten=True):
        tile, column_tile = work_item // column_tiles, work_item % column_tiles
        expert = tl.load(tiles_ptr + tile)
        first, end = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
        weight_row, limit = expert * HIDDEN + column_tile * COLUMNS, (expert + 1) * HIDDEN
        acc = tl.zeros([HEIGHT, COLUMNS], tl.float32)
        for start in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
            weight = tma_load(weights, weight_row, start, limit, WIDTH, COLUMNS, DEPTH, TMA)
            h = tma_load(x_desc, first, start, end, WIDTH, HEIGHT, DEPTH, X_TMA)
            acc = tl.dot(h, tl.trans(weight), acc, input_precision="ieee")
        pos, column = first + tl.arange(0, HEIGHT), column_tile * COLUMNS + tl.arange(0, COLUMNS)
        ok = pos < end
        pair = tl.load(order_ptr + pos, mask=ok, other=0).to(tl.int64)
        at = pairs_ptr + pair[:, None] * HIDDEN + column[None, :]
        tl.store(at, acc.to(pairs_ptr.dtype.element_ty), mask=ok[:, None] & (column < HIDDEN)[None, :])


def run_persistent(
    inner: torch.Tensor, down: torch.Tensor, pairs: torch.Tensor, aligned: AlignedTokens, config: GemmConfig
) -> None:  # fmt: skip
    """inner [pairs, width], sorted by expert -> pairs [pairs, hidden], in the order of rows and choices."""
    width, hidden, max_tiles = inner.shape[1], pairs.shape[1], aligned.tiles.shape[1]
    weights, x_desc = (
        make_descriptor(down.flatten(0, 1), config.columns, config.depth),
        make_descriptor(inner, aligned.rows, config.depth),
    )
    work_items = max_tiles * triton.cdiv(hidden, config.columns)
    _persistent_down[(min(work_items, PROGRAMS_PER_SM * multiprocessors(inner.device)),)](
        x_desc, weights, pairs, aligned.order, aligned.tiles, max_tiles, HIDDEN=hidden, WIDTH=width,
        HEIGHT=aligned.rows, COLUMNS=config.columns, DEPTH=config.depth, STAGES=config.stages[2],
        TILES_P2=triton.next_power_of_2(max_tiles), TMA=has_descriptor(weights), X_TMA=has_descriptor(x_desc),
        num_warps=config.warps,
    )  # fmt: skip

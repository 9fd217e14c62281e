"""The second product of experts that have many pairs: as many programs as the device holds at once, each of which does
tile after tile, so that the next one's numbers are on their way while what the last one made is stored."""

from __future__ import annotations

import torch

from runtime.kernels.device import multiprocessors
from runtime.kernels.fused_moe.moe_align import ExpertTiles
from runtime.kernels.fused_moe.tile_config import Product
from runtime.kernels.tma import box, boxes, is_described
from runtime.kernels.triton_import import tl, triton

TOGETHER = 2  # programs that a multiprocessor holds


def is_steady(plan: ExpertTiles, how: Product) -> bool:
    """Whether tiles follow each other, and pairs are rows of the product: then the kernel below is the quicker one."""
    return not plan.gaps and not how.turned and plan.rows >= 128


@triton.jit(do_not_specialize=["most"])
def _steady(
    given, weights, pairs_ptr, order_ptr, tiles_ptr, most,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, READ: tl.constexpr, DESCRIBED: tl.constexpr, GIVEN_DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: of all pieces, a tile of one expert's pairs times COLUMNS of the model's width, every n-th. READ: of
    tiles, at least `most`."""
    tiles = tl.arange(0, READ)
    used = tl.sum((tl.load(tiles_ptr + tiles, mask=tiles < most, other=-1) >= 0).to(tl.int32), 0)
    parts: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS
    for piece in tl.range(tl.program_id(0), used * parts, tl.num_programs(0), flatten=True):
        tile, part = piece // parts, piece % parts
        expert = tl.load(tiles_ptr + tile)
        first, end = tl.load(tiles_ptr + most + tile), tl.load(tiles_ptr + 2 * most + tile)
        weight_row, limit = expert * HIDDEN + part * COLUMNS, (expert + 1) * HIDDEN
        acc = tl.zeros([HEIGHT, COLUMNS], tl.float32)
        for start in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
            weight = box(weights, weight_row, start, limit, WIDTH, COLUMNS, DEPTH, DESCRIBED)
            h = box(given, first, start, end, WIDTH, HEIGHT, DEPTH, GIVEN_DESCRIBED)
            acc = tl.dot(h, tl.trans(weight), acc, input_precision="ieee")
        place, column = first + tl.arange(0, HEIGHT), part * COLUMNS + tl.arange(0, COLUMNS)
        ok = place < end
        pair = tl.load(order_ptr + place, mask=ok, other=0).to(tl.int64)
        at = pairs_ptr + pair[:, None] * HIDDEN + column[None, :]
        tl.store(at, acc.to(pairs_ptr.dtype.element_ty), mask=ok[:, None] & (column < HIDDEN)[None, :])


def run_steady(
    inner: torch.Tensor, down: torch.Tensor, pairs: torch.Tensor, plan: ExpertTiles, how: Product
) -> None:  # fmt: skip
    """inner [pairs, width], in the order of experts -> pairs [pairs, hidden], each at its own place."""
    width, hidden, most = inner.shape[1], pairs.shape[1], plan.tiles.shape[1]
    weights, given = boxes(down.flatten(0, 1), how.columns, how.depth), boxes(inner, plan.rows, how.depth)
    pieces = most * triton.cdiv(hidden, how.columns)
    _steady[(min(pieces, TOGETHER * multiprocessors(inner.device)),)](
        given, weights, pairs, plan.order, plan.tiles, most, HIDDEN=hidden, WIDTH=width, HEIGHT=plan.rows,
        COLUMNS=how.columns, DEPTH=how.depth, STAGES=how.stages[2], READ=triton.next_power_of_2(most),
        DESCRIBED=is_described(weights), GIVEN_DESCRIBED=is_described(given), num_warps=how.warps,
    )  # fmt: skip

"""The second product of a mixture's experts on a GPU, over the pairs of each, cut as the first one is."""

from __future__ import annotations

import torch

from runtime.kernels.fused_moe.moe_align import ExpertTiles, done_before
from runtime.kernels.fused_moe.persistent_down import is_steady, run_steady
from runtime.kernels.fused_moe.tile_config import Product
from runtime.kernels.tma import box, boxes, is_described
from runtime.kernels.triton_import import tl, triton


@triton.jit
def _down_tile(
    hidden, rest, weights, pairs_ptr, order_ptr, first, end, expert, part,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, TURNED: tl.constexpr, DESCRIBED: tl.constexpr,
    HIDDEN_DESCRIBED: tl.constexpr,
):  # fmt: skip
    """As `_gate_up_tile`."""
    if TURNED:
        acc = tl.zeros([COLUMNS, PAIRS], tl.float32)
    else:
        acc = tl.zeros([PAIRS, COLUMNS], tl.float32)
    if REST > 0:
        more = tl.zeros([COLUMNS, REST], tl.float32)
    weight_row, limit = expert * HIDDEN + part * COLUMNS, (expert + 1) * HIDDEN
    for start in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
        weight = box(weights, weight_row, start, limit, WIDTH, COLUMNS, DEPTH, DESCRIBED)
        h = box(hidden, first, start, end, WIDTH, PAIRS, DEPTH, HIDDEN_DESCRIBED)
        if TURNED:
            acc = tl.dot(weight, tl.trans(h), acc, input_precision="ieee")
        else:
            acc = tl.dot(h, tl.trans(weight), acc, input_precision="ieee")
        if REST > 0:
            h = box(rest, first + PAIRS, start, end, WIDTH, REST, DEPTH, HIDDEN_DESCRIBED)
            more = tl.dot(weight, tl.trans(h), more, input_precision="ieee")
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    keep_pairs(acc, pairs_ptr, order_ptr, first + tl.arange(0, PAIRS), end, column, HIDDEN, TURNED)
    if REST > 0:
        keep_pairs(more, pairs_ptr, order_ptr, first + PAIRS + tl.arange(0, REST), end, column, HIDDEN, True)


@triton.jit
def keep_pairs(acc, pairs_ptr, order_ptr, place, end, column, HIDDEN: tl.constexpr, TURNED: tl.constexpr):
    """Stores a tile's product, each pair's numbers at its own place."""
    ok = place < end
    pair = tl.load(order_ptr + place, mask=ok, other=0).to(tl.int64)
    at = pairs_ptr + pair * HIDDEN
    value = acc.to(pairs_ptr.dtype.element_ty)
    if TURNED:
        tl.store(at[None, :] + column[:, None], value, mask=(column < HIDDEN)[:, None] & ok[None, :])
    else:
        tl.store(at[:, None] + column[None, :], value, mask=ok[:, None] & (column < HIDDEN)[None, :])


@triton.jit(do_not_specialize=["most"])
def _down(
    hidden_ptr, middle, hidden, rest, weights, pairs_ptr, order_ptr, tiles_ptr, most,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, REST: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr, TURNED: tl.constexpr,
    DESCRIBED: tl.constexpr, HIDDEN_DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of the model's width, to each pair's own place. `middle`,
    `hidden`, `rest`: 64, HEIGHT and REST rows of `hidden_ptr` a box, where it is described."""
    part, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + most + tile), tl.load(tiles_ptr + 2 * most + tile)
    left = end - first
    if done_before(tiles_ptr, tile, expert, left, REST):
        return
    if HEIGHT < 128:
        _down_tile(
            hidden_ptr, rest, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
            HEIGHT, 0, COLUMNS, DEPTH, LOW, TURNED, DESCRIBED, False,
        )  # fmt: skip
    elif TURNED and left <= 16:
        _down_tile(
            hidden_ptr, rest, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
            16, 0, COLUMNS, DEPTH, LOW, TURNED, DESCRIBED, False,
        )  # fmt: skip
    elif left <= 64:
        _down_tile(
            middle, rest, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
            64, 0, COLUMNS, DEPTH, MIDDLE, TURNED, DESCRIBED, HIDDEN_DESCRIBED,
        )  # fmt: skip
    elif (left <= HEIGHT) | (left > HEIGHT + REST):
        _down_tile(
            hidden, rest, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
            HEIGHT, 0, COLUMNS, DEPTH, HIGH, TURNED, DESCRIBED, HIDDEN_DESCRIBED,
        )  # fmt: skip
    elif REST > 0:
        _down_tile(
            hidden, rest, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
            HEIGHT, REST, COLUMNS, DEPTH, HIGH, TURNED, DESCRIBED, HIDDEN_DESCRIBED,
        )  # fmt: skip


def run_down(
    inner: torch.Tensor, down: torch.Tensor, pairs: torch.Tensor, plan: ExpertTiles, how: Product
) -> None:  # fmt: skip
    """inner [pairs, width], in the order of experts -> pairs [pairs, hidden], each at its own place."""
    if is_steady(plan, how):
        run_steady(inner, down, pairs, plan, how)
        return
    width, hidden, most, height = inner.shape[1], pairs.shape[1], plan.tiles.shape[1], plan.rows
    low, middle, high = how.stages
    rest = how.rest(height)
    weights = boxes(down.flatten(0, 1), how.columns, how.depth)
    given = [boxes(inner, rows, how.depth) for rows in (64, height, rest or height)]
    _down[(triton.cdiv(hidden, how.columns), most)](
        inner, *given, weights, pairs, plan.order, plan.tiles, most, HIDDEN=hidden, WIDTH=width, HEIGHT=height,
        REST=rest, COLUMNS=how.columns, DEPTH=how.depth, LOW=low, MIDDLE=middle, HIGH=high, TURNED=how.turned,
        DESCRIBED=is_described(weights), HIDDEN_DESCRIBED=is_described(given[0]), num_warps=how.warps,
    )  # fmt: skip

"""The first product of a mixture's experts on a GPU, and its gate, over the pairs of each.

A tile is pairs of one expert. Where experts have few, time is the weights' bytes, so the weights are the operand that
the matrix unit takes 64 rows of, and the pairs are as many columns as there are: 16, 64, 128, or REST more than that,
chosen tile by tile. Where they have many, time is arithmetic, and the pairs are the rows, 64 or 128.
"""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, keep_gated
from runtime.kernels.fused_moe.moe_align import done_before
from runtime.kernels.fused_moe.tile_config import Product
from runtime.kernels.interleave import run_of
from runtime.kernels.tma import box, boxes, is_described
from runtime.kernels.triton_import import tl, triton


@triton.jit
def _gate_up_tile(
    x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    TURNED: tl.constexpr, DESCRIBED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """PAIRS of one expert's, and the REST that lie behind them, if any: they are turned."""
    depth = tl.arange(0, DEPTH)
    place = first + tl.arange(0, PAIRS)
    ok = place < end
    row = tl.load(order_ptr + place, mask=ok, other=0) // TOP_K
    x_at = x_ptr + row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
    if REST > 0:
        later = first + PAIRS + tl.arange(0, REST)
        there = later < end
        row = tl.load(order_ptr + later, mask=there, other=0) // TOP_K
        y_at = x_ptr + row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
        more = tl.zeros([2 * COLUMNS, REST], tl.float32)
    weight_row = expert * (2 * WIDTH) + part * (2 * COLUMNS)
    limit = (expert + 1) * (2 * WIDTH)
    if TURNED:
        acc = tl.zeros([2 * COLUMNS, PAIRS], tl.float32)
    else:
        acc = tl.zeros([PAIRS, 2 * COLUMNS], tl.float32)
    for start in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
        weight = box(weights, weight_row, start, limit, HIDDEN, 2 * COLUMNS, DEPTH, DESCRIBED)
        inside = tl.full([1, DEPTH], 1, tl.int1)
        if HIDDEN % DEPTH != 0:
            inside = (start + depth < HIDDEN)[None, :]
        x = tl.load(x_at + start, mask=ok[:, None] & inside, other=0.0)
        if TURNED:
            acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
        if REST > 0:
            y = tl.load(y_at + start, mask=there[:, None] & inside, other=0.0)
            more = tl.dot(weight, tl.trans(y), more, input_precision="ieee")
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    keep_gated(acc, hidden_ptr, place, end, column, WIDTH, RUN, PAIRS, COLUMNS, TURNED, GELU)
    if REST > 0:
        keep_gated(more, hidden_ptr, later, end, column, WIDTH, RUN, REST, COLUMNS, True, GELU)


@triton.jit(do_not_specialize=["most"])  # else each new value may compile again
def _gate_up(
    x_ptr, weights, hidden_ptr, order_ptr, tiles_ptr, most,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, HEIGHT: tl.constexpr,
    REST: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, MIDDLE: tl.constexpr,
    HIGH: tl.constexpr, TURNED: tl.constexpr, DESCRIBED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of its width; stores act(gate) * up in expert order."""
    part, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + most + tile), tl.load(tiles_ptr + 2 * most + tile)
    left = end - first
    if done_before(tiles_ptr, tile, expert, left, REST):
        return
    if HEIGHT < 128:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
            HEIGHT, 0, COLUMNS, DEPTH, LOW, TURNED, DESCRIBED, GELU,
        )  # fmt: skip
    elif TURNED and left <= 16:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
            16, 0, COLUMNS, DEPTH, LOW, TURNED, DESCRIBED, GELU,
        )  # fmt: skip
    elif left <= 64:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
            64, 0, COLUMNS, DEPTH, MIDDLE, TURNED, DESCRIBED, GELU,
        )  # fmt: skip
    elif (left <= HEIGHT) | (left > HEIGHT + REST):
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
            HEIGHT, 0, COLUMNS, DEPTH, HIGH, TURNED, DESCRIBED, GELU,
        )  # fmt: skip
    elif REST > 0:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
            HEIGHT, REST, COLUMNS, DEPTH, HIGH, TURNED, DESCRIBED, GELU,
        )  # fmt: skip


def run_gate_up(
    x: torch.Tensor, gate_up: torch.Tensor, inner: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, top_k: int,
    height: int, how: Product, activation: Activation,
) -> None:  # fmt: skip
    """[rows, hidden] -> inner [pairs, width], in the order of experts."""
    hidden, width, most = x.shape[1], inner.shape[1], tiles.shape[1]
    low, middle, high = how.stages
    weights = boxes(gate_up.flatten(0, 1), 2 * how.columns, how.depth)
    _gate_up[(triton.cdiv(width, how.columns), most)](
        x, weights, inner, order, tiles, most, TOP_K=top_k, HIDDEN=hidden, WIDTH=width, RUN=run_of(width),
        HEIGHT=height, REST=how.rest(height), COLUMNS=how.columns, DEPTH=how.depth, LOW=low, MIDDLE=middle,
        HIGH=high, TURNED=how.turned, DESCRIBED=is_described(weights), GELU=activation == "gelu_tanh",
        num_warps=how.warps,
    )  # fmt: skip

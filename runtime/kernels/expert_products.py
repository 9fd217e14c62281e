"""The experts of a mixture on a GPU: a gated product and a second one over the pairs of each expert.

A tile is pairs of one expert. Where experts have few, time is the weights' bytes, so the weights are the operand that
the matrix unit takes 64 rows of, and the pairs are as many columns as there are: 16, 64 or 128, chosen tile by tile.
Where they have many, time is arithmetic, and the pairs are the rows, 64 or 128.
"""

from __future__ import annotations

import torch

from runtime.kernels.descriptors import box, boxes, is_described
from runtime.kernels.expert_cut import Product, cut, fixed_cut, name_of
from runtime.kernels.expert_sort import ExpertTiles, sort_by_expert
from runtime.kernels.expert_steady import is_steady, run_steady
from runtime.kernels.expert_sum import sum_add_norm, sum_up
from runtime.kernels.gate import Activation, gated
from runtime.kernels.triton_import import tl, triton
from runtime.kernels.turns import run_of


@triton.jit
def _gate_up_tile(
    x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr,
    PAIRS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    TURNED: tl.constexpr, DESCRIBED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    place = first + tl.arange(0, PAIRS)
    ok = place < end
    row = tl.load(order_ptr + place, mask=ok, other=0) // TOP_K
    depth = tl.arange(0, DEPTH)
    x_at = x_ptr + row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
    weight_row = expert * (2 * WIDTH) + part * (2 * COLUMNS)
    limit = (expert + 1) * (2 * WIDTH)
    if TURNED:
        acc = tl.zeros([2 * COLUMNS, PAIRS], tl.float32)
    else:
        acc = tl.zeros([PAIRS, 2 * COLUMNS], tl.float32)
    for start in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
        weight = box(weights, weight_row, start, limit, HIDDEN, 2 * COLUMNS, DEPTH, DESCRIBED)
        inside = ok[:, None]
        if HIDDEN % DEPTH != 0:
            inside = inside & (start + depth < HIDDEN)[None, :]
        x = tl.load(x_at + start, mask=inside, other=0.0)
        if TURNED:
            acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    at = hidden_ptr + place.to(tl.int64) * WIDTH
    if TURNED:
        runs = tl.permute(tl.reshape(acc, [COLUMNS // RUN, 2, RUN, PAIRS]), (0, 2, 3, 1))
        gate, up = tl.split(runs)
        value = tl.reshape(gated(gate, up, GELU), [COLUMNS, PAIRS]).to(hidden_ptr.dtype.element_ty)
        tl.store(at[None, :] + column[:, None], value, mask=(column < WIDTH)[:, None] & ok[None, :])
    else:
        runs = tl.permute(tl.reshape(acc, [PAIRS, COLUMNS // RUN, 2, RUN]), (0, 1, 3, 2))
        gate, up = tl.split(runs)
        value = tl.reshape(gated(gate, up, GELU), [PAIRS, COLUMNS]).to(hidden_ptr.dtype.element_ty)
        tl.store(at[:, None] + column[None, :], value, mask=ok[:, None] & (column < WIDTH)[None, :])


@triton.jit(do_not_specialize=["most"])  # else each new value may compile again
def _gate_up(
    x_ptr, weights, hidden_ptr, order_ptr, tiles_ptr, most,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr,
    TURNED: tl.constexpr, DESCRIBED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of its width; stores act(gate) * up in expert order."""
    part, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + most + tile), tl.load(tiles_ptr + 2 * most + tile)
    if HEIGHT < 128:
        _gate_up_tile(
            x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
            HEIGHT, COLUMNS, DEPTH, LOW, TURNED, DESCRIBED, GELU,
        )  # fmt: skip
    elif not TURNED:
        if end - first <= 64:
            _gate_up_tile(
                x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
                64, COLUMNS, DEPTH, MIDDLE, False, DESCRIBED, GELU,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
                HEIGHT, COLUMNS, DEPTH, HIGH, False, DESCRIBED, GELU,
            )  # fmt: skip
    else:
        if end - first <= 16:
            _gate_up_tile(
                x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
                16, COLUMNS, DEPTH, LOW, True, DESCRIBED, GELU,
            )  # fmt: skip
        elif end - first <= 64:
            _gate_up_tile(
                x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
                64, COLUMNS, DEPTH, MIDDLE, True, DESCRIBED, GELU,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_ptr, weights, hidden_ptr, order_ptr, first, end, expert, part, TOP_K, HIDDEN, WIDTH, RUN,
                HEIGHT, COLUMNS, DEPTH, HIGH, True, DESCRIBED, GELU,
            )  # fmt: skip


@triton.jit
def _down_tile(
    hidden, weights, pairs_ptr, order_ptr, first, end, expert, part,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, TURNED: tl.constexpr, DESCRIBED: tl.constexpr, HIDDEN_DESCRIBED: tl.constexpr,
):  # fmt: skip
    if TURNED:
        acc = tl.zeros([COLUMNS, PAIRS], tl.float32)
    else:
        acc = tl.zeros([PAIRS, COLUMNS], tl.float32)
    weight_row, limit = expert * HIDDEN + part * COLUMNS, (expert + 1) * HIDDEN
    for start in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
        weight = box(weights, weight_row, start, limit, WIDTH, COLUMNS, DEPTH, DESCRIBED)
        h = box(hidden, first, start, end, WIDTH, PAIRS, DEPTH, HIDDEN_DESCRIBED)
        if TURNED:
            acc = tl.dot(weight, tl.trans(h), acc, input_precision="ieee")
        else:
            acc = tl.dot(h, tl.trans(weight), acc, input_precision="ieee")
    place = first + tl.arange(0, PAIRS)
    ok = place < end
    pair = tl.load(order_ptr + place, mask=ok, other=0).to(tl.int64)
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    at = pairs_ptr + pair * HIDDEN
    value = acc.to(pairs_ptr.dtype.element_ty)
    if TURNED:
        tl.store(at[None, :] + column[:, None], value, mask=(column < HIDDEN)[:, None] & ok[None, :])
    else:
        tl.store(at[:, None] + column[None, :], value, mask=ok[:, None] & (column < HIDDEN)[None, :])


@triton.jit(do_not_specialize=["most"])
def _down(
    hidden_ptr, hidden, weights, pairs_ptr, order_ptr, tiles_ptr, most,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr,
    TURNED: tl.constexpr, DESCRIBED: tl.constexpr, HIDDEN_DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of the model's width, to each pair's own place. `hidden`:
    HEIGHT rows of `hidden_ptr` a box, where it is described."""
    part, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + most + tile), tl.load(tiles_ptr + 2 * most + tile)
    if HEIGHT < 128:
        _down_tile(
            hidden_ptr, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
            HEIGHT, COLUMNS, DEPTH, LOW, TURNED, DESCRIBED, False,
        )  # fmt: skip
    elif not TURNED:
        if end - first <= 64:
            _down_tile(
                hidden_ptr, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
                64, COLUMNS, DEPTH, MIDDLE, False, DESCRIBED, False,
            )  # fmt: skip
        else:
            _down_tile(
                hidden, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
                HEIGHT, COLUMNS, DEPTH, HIGH, False, DESCRIBED, HIDDEN_DESCRIBED,
            )  # fmt: skip
    else:
        if end - first <= 16:
            _down_tile(
                hidden_ptr, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
                16, COLUMNS, DEPTH, LOW, True, DESCRIBED, False,
            )  # fmt: skip
        elif end - first <= 64:
            _down_tile(
                hidden_ptr, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
                64, COLUMNS, DEPTH, MIDDLE, True, DESCRIBED, False,
            )  # fmt: skip
        else:
            _down_tile(
                hidden_ptr, weights, pairs_ptr, order_ptr, first, end, expert, part, HIDDEN, WIDTH,
                HEIGHT, COLUMNS, DEPTH, HIGH, True, DESCRIBED, False,
            )  # fmt: skip


def moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
    *,
    fixed: bool = False,
) -> torch.Tensor:
    """`moe_reference` on a GPU for contiguous tensors, float32 weights, and `gate_up` in turns (`turns.in_turns`); no
    host synchronisation, deterministic. `fixed`: a row's bits do not depend on the others."""
    return sum_up(products(x, ids, gate_up, down, activation, fixed=fixed), ids, weights, shared, out)


def moe_add_norm(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    residual: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    *,
    fixed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_rms_norm_reference` of what `moe` gives, and `residual`."""
    return sum_add_norm(products(x, ids, gate_up, down, "silu", fixed=fixed), ids, weights, shared, residual, norm, eps)


def products(
    x: torch.Tensor, ids: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, activation: Activation, *,
    fixed: bool = False,
) -> torch.Tensor:  # fmt: skip
    """[rows * top_k, hidden]: each row's choices through their experts; nothing is stored for dead ones."""
    hidden, experts, width = x.shape[1], gate_up.shape[0], down.shape[2]
    if fixed:
        chosen = fixed_cut(ids.numel(), experts, x.element_size(), hidden, width)
    else:
        chosen = cut(ids.numel(), experts, x.element_size(), hidden, width, name_of(x.device))
    plan = sort_by_expert(ids, experts, chosen.height)
    inner, pairs = x.new_empty(ids.numel(), width), x.new_empty(ids.numel(), hidden)
    run_gate_up(x, gate_up, inner, plan.order, plan.tiles, ids.shape[1], chosen.height, chosen.gate_up, activation)
    run_down(inner, down, pairs, plan, chosen.down)
    return pairs


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
        HEIGHT=height, COLUMNS=how.columns, DEPTH=how.depth, LOW=low, MIDDLE=middle, HIGH=high, TURNED=how.turned,
        DESCRIBED=is_described(weights), GELU=activation == "gelu_tanh", num_warps=how.warps,
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
    weights = boxes(down.flatten(0, 1), how.columns, how.depth)
    given = inner if how.turned else boxes(inner, height, how.depth)
    _down[(triton.cdiv(hidden, how.columns), most)](
        inner, given, weights, pairs, plan.order, plan.tiles, most, HIDDEN=hidden, WIDTH=width, HEIGHT=height,
        COLUMNS=how.columns, DEPTH=how.depth, LOW=low, MIDDLE=middle, HIGH=high, TURNED=how.turned,
        DESCRIBED=is_described(weights), HIDDEN_DESCRIBED=is_described(given), num_warps=how.warps,
    )  # fmt: skip

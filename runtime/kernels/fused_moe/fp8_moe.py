"""The experts of a mixture on a GPU, weights and activations of eight bits.

Otherwise as ``fused_moe.py``, and summed by ``moe_sum.py``; what is here is the arithmetic: products of e4m3,
whose scales come in after the last of them.
"""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, keep_gated
from runtime.kernels.fp8 import Fp8, quantise, rounded
from runtime.kernels.fused_moe.down import keep_pairs
from runtime.kernels.fused_moe.moe_align import sort_by_expert
from runtime.kernels.fused_moe.moe_sum import sum_add_norm, sum_up
from runtime.kernels.fused_moe.tile_config import Cut, Product
from runtime.kernels.interleave import run_of
from runtime.kernels.tma import box, boxes, is_described
from runtime.kernels.triton_import import tl, triton


def cut(pairs: int, experts: int, hidden: int, width: int, *, fixed: bool = False) -> Cut:
    """As ``expert_cut.by_rule``, or, `fixed`, ``fixed_cut``; the matrix unit takes at least 32 numbers of depth."""
    each = pairs / experts
    if fixed:  # the weights are the first operand in all that are left
        each = min(each, 96)
    if each <= 1.5:
        chosen = Cut(16, Product(32, 128, (5, 5, 5), 4), Product(128, 256, (2, 2, 2), 4))
    elif each <= 16:
        chosen = Cut(128, Product(32, 128, (5, 4, 3), 4), Product(128, 128, (4, 4, 3), 4))
    elif each <= 96:
        chosen = Cut(128, Product(64, 128, (4, 3, 3), 4), Product(128, 128, (4, 4, 3), 4))
    else:
        chosen = Cut(128, Product(128, 128, (4, 4, 4), 8, turned=False), Product(128, 128, (4, 4, 3), 4))
    return Cut(chosen.height, _fitted(chosen.gate_up, width, hidden), _fitted(chosen.down, hidden, width))


def _fitted(product: Product, outputs: int, inputs: int) -> Product:
    return product._replace(
        columns=min(product.columns, max(16, triton.next_power_of_2(outputs))),
        depth=min(product.depth, max(32, triton.next_power_of_2(inputs))),
    )


@triton.jit
def _gate_up_tile(
    x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
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
            acc = tl.dot(weight, tl.trans(x), acc)
        else:
            acc = tl.dot(x, tl.trans(weight), acc)
    weight_rows = weight_row + tl.arange(0, 2 * COLUMNS)
    scale = tl.load(scales_ptr + weight_rows, mask=weight_rows < limit, other=0.0)
    x_scale = tl.load(x_scales_ptr + row, mask=ok, other=0.0)
    if TURNED:
        acc = acc * scale[:, None] * x_scale[None, :]
    else:
        acc = acc * x_scale[:, None] * scale[None, :]
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    keep_gated(acc, hidden_ptr, place, end, column, WIDTH, RUN, PAIRS, COLUMNS, TURNED, GELU)


@triton.jit(do_not_specialize=["most"])  # else each new value may compile again
def _gate_up(
    x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, tiles_ptr, most,
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
            x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
            TOP_K, HIDDEN, WIDTH, RUN, HEIGHT, COLUMNS, DEPTH, LOW, TURNED, DESCRIBED, GELU,
        )  # fmt: skip
    elif not TURNED:
        if end - first <= 64:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                TOP_K, HIDDEN, WIDTH, RUN, 64, COLUMNS, DEPTH, MIDDLE, False, DESCRIBED, GELU,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                TOP_K, HIDDEN, WIDTH, RUN, HEIGHT, COLUMNS, DEPTH, HIGH, False, DESCRIBED, GELU,
            )  # fmt: skip
    else:
        if end - first <= 16:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                TOP_K, HIDDEN, WIDTH, RUN, 16, COLUMNS, DEPTH, LOW, True, DESCRIBED, GELU,
            )  # fmt: skip
        elif end - first <= 64:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                TOP_K, HIDDEN, WIDTH, RUN, 64, COLUMNS, DEPTH, MIDDLE, True, DESCRIBED, GELU,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                TOP_K, HIDDEN, WIDTH, RUN, HEIGHT, COLUMNS, DEPTH, HIGH, True, DESCRIBED, GELU,
            )  # fmt: skip


@triton.jit
def _down_tile(
    hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    acc = tl.zeros([COLUMNS, PAIRS], tl.float32)
    weight_row, limit = expert * HIDDEN + part * COLUMNS, (expert + 1) * HIDDEN
    for start in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
        weight = box(weights, weight_row, start, limit, WIDTH, COLUMNS, DEPTH, DESCRIBED)
        h = box(hidden_ptr, first, start, end, WIDTH, PAIRS, DEPTH, False)
        acc = tl.dot(weight, tl.trans(h), acc)
    place = first + tl.arange(0, PAIRS)
    ok = place < end
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    scale = tl.load(scales_ptr + expert * HIDDEN + column, mask=column < HIDDEN, other=0.0)
    h_scale = tl.load(hidden_scales_ptr + place, mask=ok, other=0.0)
    acc = acc * scale[:, None] * h_scale[None, :]
    keep_pairs(acc, pairs_ptr, order_ptr, place, end, column, HIDDEN, True)


@triton.jit(do_not_specialize=["most"])
def _down(
    hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, tiles_ptr, most,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of the model's width, to each pair's own place."""
    part, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + most + tile), tl.load(tiles_ptr + 2 * most + tile)
    if HEIGHT < 128:
        _down_tile(
            hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
            HIDDEN, WIDTH, HEIGHT, COLUMNS, DEPTH, LOW, DESCRIBED,
        )  # fmt: skip
    else:
        if end - first <= 16:
            _down_tile(
                hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
                HIDDEN, WIDTH, 16, COLUMNS, DEPTH, LOW, DESCRIBED,
            )  # fmt: skip
        elif end - first <= 64:
            _down_tile(
                hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
                HIDDEN, WIDTH, 64, COLUMNS, DEPTH, MIDDLE, DESCRIBED,
            )  # fmt: skip
        else:
            _down_tile(
                hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
                HIDDEN, WIDTH, HEIGHT, COLUMNS, DEPTH, HIGH, DESCRIBED,
            )  # fmt: skip


def moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Fp8,
    down: Fp8,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
    *,
    fixed: bool = False,
) -> torch.Tensor:
    """``expert_products.moe`` with weights of eight bits; rows and what the gates make of them are rounded to as many,
    each with a scale of its own."""
    return sum_up(products(x, ids, gate_up, down, activation, fixed=fixed), ids, weights, shared, out)


def moe_add_norm(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Fp8,
    down: Fp8,
    shared: torch.Tensor | None,
    residual: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    *,
    fixed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``expert_products.moe_add_norm``; the normed rows are rounded too."""
    pairs = products(x, ids, gate_up, down, "silu", fixed=fixed)
    return sum_add_norm(pairs, ids, weights, shared, residual, norm, eps, eight_bits=True)


def products(
    x: torch.Tensor, ids: torch.Tensor, gate_up: Fp8, down: Fp8, activation: Activation, *, fixed: bool = False
) -> torch.Tensor:
    """``expert_products.products``."""
    hidden, top_k = x.shape[1], ids.shape[1]
    experts, _, width = down.values.shape
    chosen = cut(ids.numel(), experts, hidden, width, fixed=fixed)
    plan = sort_by_expert(ids, experts, chosen.height)
    inner, pairs = x.new_empty(ids.numel(), width), x.new_empty(ids.numel(), hidden)
    run_gate_up(rounded(x), gate_up, inner, plan.order, plan.tiles, top_k, chosen.height, chosen.gate_up, activation)
    run_down(quantise(inner), down, pairs, plan.order, plan.tiles, chosen.height, chosen.down)
    return pairs


def run_gate_up(
    x: Fp8, gate_up: Fp8, inner: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, top_k: int, height: int,
    how: Product, activation: Activation,
) -> None:  # fmt: skip
    """[rows, hidden] -> inner [pairs, width], in the order of experts."""
    hidden, width, most = x.values.shape[1], inner.shape[1], tiles.shape[1]
    low, middle, high = how.stages
    weights = boxes(gate_up.values.flatten(0, 1), 2 * how.columns, how.depth)
    _gate_up[(triton.cdiv(width, how.columns), most)](
        x.values, x.scales, weights, gate_up.scales, inner, order, tiles, most, TOP_K=top_k, HIDDEN=hidden,
        WIDTH=width, RUN=run_of(width), HEIGHT=height, COLUMNS=how.columns, DEPTH=how.depth, LOW=low, MIDDLE=middle,
        HIGH=high, TURNED=how.turned, DESCRIBED=is_described(weights), GELU=activation == "gelu_tanh",
        num_warps=how.warps,
    )  # fmt: skip


def run_down(
    inner: Fp8, down: Fp8, pairs: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, height: int, how: Product
) -> None:
    """inner [pairs, width], in the order of experts -> pairs [pairs, hidden], each at its own place."""
    width, hidden, most = inner.values.shape[1], pairs.shape[1], tiles.shape[1]
    low, middle, high = how.stages
    weights = boxes(down.values.flatten(0, 1), how.columns, how.depth)
    _down[(triton.cdiv(hidden, how.columns), most)](
        inner.values, inner.scales, weights, down.scales, pairs, order, tiles, most, HIDDEN=hidden, WIDTH=width,
        HEIGHT=height, COLUMNS=how.columns, DEPTH=how.depth, LOW=low, MIDDLE=middle, HIGH=high,
        DESCRIBED=is_described(weights), num_warps=how.warps,
    )  # fmt: skip

"""The experts of a mixture on a GPU, weights of few bits and rows of sixteen.

Otherwise as ``fused_moe.py``, and summed by ``moe_sum.py``. The weights are the first operand whatever the
number of pairs: their codes become numbers in registers.
"""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, keep_gated
from runtime.kernels.fused_moe.down import keep_pairs
from runtime.kernels.fused_moe.moe_align import sort_by_expert
from runtime.kernels.fused_moe.moe_sum import sum_add_norm, sum_up
from runtime.kernels.fused_moe.tile_config import Cut, Product
from runtime.kernels.group_quantized import Grouped
from runtime.kernels.group_quantized_gemm import product
from runtime.kernels.group_quantized_linear import depth_of, group_of
from runtime.kernels.interleave import run_of
from runtime.kernels.tma import boxes, is_described
from runtime.kernels.triton_import import tl, triton


def cut(pairs: int, experts: int, element_size: int, gate_up: Grouped, down: Grouped) -> Cut:
    """As ``expert_cut.by_rule``. A program's memory is that of its highest tile, so few pairs have kernels without.
    A pair's sums are alike in all cuts: the depth is the weight's own, and pairs are never the first operand, so that
    these are the cuts of deterministic kernels too."""
    each = pairs / experts
    if element_size == 4:  # no matrix unit of full precision: keep within registers
        chosen = Cut(16, Product(16, 64, (2, 2, 2), 4), Product(32, 64, (2, 2, 2), 4))
    elif each <= 1.5:
        chosen = Cut(16, Product(64, 128, (4, 4, 4), 4), Product(128, 128, (3, 3, 3), 4))
    elif each <= 48:
        chosen = Cut(64, Product(64, 128, (3, 3, 3), 4), Product(128, 128, (3, 3, 3), 8))
    else:
        chosen = Cut(128, Product(32, 128, (3, 3, 3), 4), Product(64, 128, (3, 3, 3), 4))
    return Cut(chosen.height, _fitted(chosen.gate_up, gate_up, 2), _fitted(chosen.down, down, 1))


def _fitted(product: Product, weight: Grouped, parts: int) -> Product:
    columns, deep = max(16, triton.next_power_of_2(weight.shape[-2] // parts)), depth_of(weight)
    depth = min(product.depth, deep) if group_of(weight) == 0 else deep
    return product._replace(columns=min(product.columns, columns), depth=depth)


@triton.jit
def _gate_up_tile(
    x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, GROUP: tl.constexpr,
    FOUR: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    DESCRIBED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    place = first + tl.arange(0, PAIRS)
    ok = place < end
    row = tl.load(order_ptr + place, mask=ok, other=0) // TOP_K
    weight_row = expert * (2 * WIDTH) + part * (2 * COLUMNS)
    acc = product(
        x_ptr, row, ok, weights, scales_ptr, weight_row, (expert + 1) * (2 * WIDTH), HIDDEN, GROUP, FOUR, 2 * COLUMNS,
        PAIRS, DEPTH, STAGES, DESCRIBED,
    )  # fmt: skip
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    keep_gated(acc, hidden_ptr, place, end, column, WIDTH, RUN, PAIRS, COLUMNS, True, GELU)


@triton.jit
def _down_tile(
    hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, FOUR: tl.constexpr, PAIRS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    place = first + tl.arange(0, PAIRS)
    ok = place < end
    weight_row = expert * HIDDEN + part * COLUMNS
    acc = product(
        hidden_ptr, place, ok, weights, scales_ptr, weight_row, (expert + 1) * HIDDEN, WIDTH, GROUP, FOUR, COLUMNS,
        PAIRS, DEPTH, STAGES, DESCRIBED,
    )  # fmt: skip
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    keep_pairs(acc, pairs_ptr, order_ptr, place, end, column, HIDDEN, True)


@triton.jit(do_not_specialize=["most"])  # else each new value may compile again
def _gate_up(
    x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, tiles_ptr, most,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, GROUP: tl.constexpr,
    FOUR: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr,
    MIDDLE: tl.constexpr, HIGH: tl.constexpr, DESCRIBED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of its width; stores act(gate) * up in expert order."""
    part, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + most + tile), tl.load(tiles_ptr + 2 * most + tile)
    if HEIGHT == 16:
        _gate_up_tile(
            x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
            TOP_K, HIDDEN, WIDTH, RUN, GROUP, FOUR, 16, COLUMNS, DEPTH, LOW, DESCRIBED, GELU,
        )  # fmt: skip
    else:
        if end - first <= 16:
            _gate_up_tile(
                x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                TOP_K, HIDDEN, WIDTH, RUN, GROUP, FOUR, 16, COLUMNS, DEPTH, LOW, DESCRIBED, GELU,
            )  # fmt: skip
        else:
            if HEIGHT == 64:
                _gate_up_tile(
                    x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                    TOP_K, HIDDEN, WIDTH, RUN, GROUP, FOUR, 64, COLUMNS, DEPTH, MIDDLE, DESCRIBED, GELU,
                )  # fmt: skip
            else:
                if end - first <= 64:
                    _gate_up_tile(
                        x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                        TOP_K, HIDDEN, WIDTH, RUN, GROUP, FOUR, 64, COLUMNS, DEPTH, MIDDLE, DESCRIBED, GELU,
                    )  # fmt: skip
                else:
                    _gate_up_tile(
                        x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, part,
                        TOP_K, HIDDEN, WIDTH, RUN, GROUP, FOUR, HEIGHT, COLUMNS, DEPTH, HIGH, DESCRIBED, GELU,
                    )  # fmt: skip


@triton.jit(do_not_specialize=["most"])
def _down(
    hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, tiles_ptr, most,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, FOUR: tl.constexpr, HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of the model's width, to each pair's own place."""
    part, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + most + tile), tl.load(tiles_ptr + 2 * most + tile)
    if HEIGHT == 16:
        _down_tile(
            hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
            HIDDEN, WIDTH, GROUP, FOUR, 16, COLUMNS, DEPTH, LOW, DESCRIBED,
        )  # fmt: skip
    else:
        if end - first <= 16:
            _down_tile(
                hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
                HIDDEN, WIDTH, GROUP, FOUR, 16, COLUMNS, DEPTH, LOW, DESCRIBED,
            )  # fmt: skip
        else:
            if HEIGHT == 64:
                _down_tile(
                    hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
                    HIDDEN, WIDTH, GROUP, FOUR, 64, COLUMNS, DEPTH, MIDDLE, DESCRIBED,
                )  # fmt: skip
            else:
                if end - first <= 64:
                    _down_tile(
                        hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
                        HIDDEN, WIDTH, GROUP, FOUR, 64, COLUMNS, DEPTH, MIDDLE, DESCRIBED,
                    )  # fmt: skip
                else:
                    _down_tile(
                        hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, part,
                        HIDDEN, WIDTH, GROUP, FOUR, HEIGHT, COLUMNS, DEPTH, HIGH, DESCRIBED,
                    )  # fmt: skip


def moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Grouped,
    down: Grouped,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``expert_products.moe`` with weights of few bits."""
    return sum_up(products(x, ids, gate_up, down, activation), ids, weights, shared, out)


def moe_add_norm(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Grouped,
    down: Grouped,
    shared: torch.Tensor | None,
    residual: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``expert_products.moe_add_norm``."""
    return sum_add_norm(products(x, ids, gate_up, down, "silu"), ids, weights, shared, residual, norm, eps)


def products(
    x: torch.Tensor, ids: torch.Tensor, gate_up: Grouped, down: Grouped, activation: Activation
) -> torch.Tensor:
    """``expert_products.products``."""
    hidden, (experts, _, width) = x.shape[1], down.shape
    chosen = cut(ids.numel(), experts, x.element_size(), gate_up, down)
    plan = sort_by_expert(ids, experts, chosen.height)
    inner, pairs = x.new_empty(ids.numel(), width), x.new_empty(ids.numel(), hidden)
    run_gate_up(x, gate_up, inner, plan.order, plan.tiles, ids.shape[1], chosen.height, chosen.gate_up, activation)
    run_down(inner, down, pairs, plan.order, plan.tiles, chosen.height, chosen.down)
    return pairs


def run_gate_up(
    x: torch.Tensor, gate_up: Grouped, inner: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, top_k: int,
    height: int, how: Product, activation: Activation,
) -> None:  # fmt: skip
    """[rows, hidden] -> inner [pairs, width], in the order of experts."""
    width, most = inner.shape[1], tiles.shape[1]
    low, middle, high = how.stages
    four = gate_up.values.dtype == torch.uint8
    weights = boxes(gate_up.values.flatten(0, 1), 2 * how.columns, how.depth // 2 if four else how.depth)
    _gate_up[(triton.cdiv(width, how.columns), most)](
        x, weights, gate_up.scales, inner, order, tiles, most, TOP_K=top_k, HIDDEN=x.shape[1], WIDTH=width,
        RUN=run_of(width), GROUP=group_of(gate_up), FOUR=four, HEIGHT=height, COLUMNS=how.columns, DEPTH=how.depth,
        LOW=low, MIDDLE=middle, HIGH=high, DESCRIBED=is_described(weights), GELU=activation == "gelu_tanh",
        num_warps=how.warps,
    )  # fmt: skip


def run_down(
    inner: torch.Tensor, down: Grouped, pairs: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, height: int,
    how: Product,
) -> None:  # fmt: skip
    """inner [pairs, width], in the order of experts -> pairs [pairs, hidden], each at its own place."""
    width, hidden, most = inner.shape[1], pairs.shape[1], tiles.shape[1]
    low, middle, high = how.stages
    four = down.values.dtype == torch.uint8
    weights = boxes(down.values.flatten(0, 1), how.columns, how.depth // 2 if four else how.depth)
    _down[(triton.cdiv(hidden, how.columns), most)](
        inner, weights, down.scales, pairs, order, tiles, most, HIDDEN=hidden, WIDTH=width, GROUP=group_of(down),
        FOUR=four, HEIGHT=height, COLUMNS=how.columns, DEPTH=how.depth, LOW=low, MIDDLE=middle, HIGH=high,
        DESCRIBED=is_described(weights), num_warps=how.warps,
    )  # fmt: skip

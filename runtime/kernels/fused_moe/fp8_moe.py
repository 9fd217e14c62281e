"""MoE layer on a GPU with fp8 weights and activations.

The structure is that of ``fused_moe.py``; ``moe_sum.py`` sums the experts. The GEMMs multiply e4m3 numbers, with the
scales in the epilogue.
"""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, store_gated_tile
from runtime.kernels.fp8 import Fp8, quantize_fp8, quantized_of
from runtime.kernels.fused_moe.down import store_pairs
from runtime.kernels.fused_moe.moe_align import moe_align_block_size
from runtime.kernels.fused_moe.moe_sum import moe_sum, moe_sum_add_norm
from runtime.kernels.fused_moe.tile_config import FusedMoEConfig, GemmConfig
from runtime.kernels.interleave import interleave_group
from runtime.kernels.tma import has_descriptor, make_descriptor, tma_load
from runtime.kernels.triton_import import tl, triton


def get_config(pairs: int, experts: int, hidden: int, width: int, *, batch_invariant: bool = False) -> FusedMoEConfig:
    """As ``tile_config.default_config``, or with `batch_invariant` as ``batch_invariant_config``; fp8 needs a depth of
    32.
    """
    pairs_per_expert = pairs / experts
    if batch_invariant:  # the weights are the first operand in all remaining configs
        pairs_per_expert = min(pairs_per_expert, 96)
    if pairs_per_expert <= 1.5:
        chosen = FusedMoEConfig(16, GemmConfig(32, 128, (5, 5, 5), 4), GemmConfig(128, 256, (2, 2, 2), 4))
    elif pairs_per_expert <= 16:
        chosen = FusedMoEConfig(128, GemmConfig(32, 128, (5, 4, 3), 4), GemmConfig(128, 128, (4, 4, 3), 4))
    elif pairs_per_expert <= 96:
        chosen = FusedMoEConfig(128, GemmConfig(64, 128, (4, 3, 3), 4), GemmConfig(128, 128, (4, 4, 3), 4))
    else:
        chosen = FusedMoEConfig(
            128, GemmConfig(128, 128, (4, 4, 4), 8, swap_ab=False), GemmConfig(128, 128, (4, 4, 3), 4)
        )
    return FusedMoEConfig(
        chosen.height, _clamp_to_shape(chosen.gate_up, width, hidden), _clamp_to_shape(chosen.down, hidden, width)
    )


def _clamp_to_shape(config: GemmConfig, outputs: int, inputs: int) -> GemmConfig:
    return config._replace(
        columns=min(config.columns, max(16, triton.next_power_of_2(outputs))),
        depth=min(config.depth, max(32, triton.next_power_of_2(inputs))),
    )


@triton.jit
def _gate_up_tile(
    x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr,
    PAIRS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    SWAP_AB: tl.constexpr, TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    pos = first + tl.arange(0, PAIRS)
    ok = pos < end
    row = tl.load(order_ptr + pos, mask=ok, other=0) // TOP_K
    depth = tl.arange(0, DEPTH)
    x_at = x_ptr + row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
    weight_row = expert * (2 * WIDTH) + column_tile * (2 * COLUMNS)
    limit = (expert + 1) * (2 * WIDTH)
    if SWAP_AB:
        acc = tl.zeros([2 * COLUMNS, PAIRS], tl.float32)
    else:
        acc = tl.zeros([PAIRS, 2 * COLUMNS], tl.float32)
    for start in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
        weight = tma_load(weights, weight_row, start, limit, HIDDEN, 2 * COLUMNS, DEPTH, TMA)
        inside = ok[:, None]
        if HIDDEN % DEPTH != 0:
            inside = inside & (start + depth < HIDDEN)[None, :]
        x = tl.load(x_at + start, mask=inside, other=0.0)
        if SWAP_AB:
            acc = tl.dot(weight, tl.trans(x), acc)
        else:
            acc = tl.dot(x, tl.trans(weight), acc)
    weight_rows = weight_row + tl.arange(0, 2 * COLUMNS)
    scale = tl.load(scales_ptr + weight_rows, mask=weight_rows < limit, other=0.0)
    x_scale = tl.load(x_scales_ptr + row, mask=ok, other=0.0)
    if SWAP_AB:
        acc = acc * scale[:, None] * x_scale[None, :]
    else:
        acc = acc * x_scale[:, None] * scale[None, :]
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    store_gated_tile(acc, hidden_ptr, pos, end, column, WIDTH, INTERLEAVE, PAIRS, COLUMNS, SWAP_AB, GELU)


@triton.jit(do_not_specialize=["max_tiles"])  # avoids a recompilation per value
def _gate_up(
    x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, tiles_ptr, max_tiles,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr,
    SWAP_AB: tl.constexpr, TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of its width; stores act(gate) * up sorted by expert."""
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
    if HEIGHT < 128:
        _gate_up_tile(
            x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
            TOP_K, HIDDEN, WIDTH, INTERLEAVE, HEIGHT, COLUMNS, DEPTH, LOW, SWAP_AB, TMA, GELU,
        )  # fmt: skip
    elif not SWAP_AB:
        if end - first <= 64:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                TOP_K, HIDDEN, WIDTH, INTERLEAVE, 64, COLUMNS, DEPTH, MIDDLE, False, TMA, GELU,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                TOP_K, HIDDEN, WIDTH, INTERLEAVE, HEIGHT, COLUMNS, DEPTH, HIGH, False, TMA, GELU,
            )  # fmt: skip
    else:
        if end - first <= 16:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                TOP_K, HIDDEN, WIDTH, INTERLEAVE, 16, COLUMNS, DEPTH, LOW, True, TMA, GELU,
            )  # fmt: skip
        elif end - first <= 64:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                TOP_K, HIDDEN, WIDTH, INTERLEAVE, 64, COLUMNS, DEPTH, MIDDLE, True, TMA, GELU,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_ptr, x_scales_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                TOP_K, HIDDEN, WIDTH, INTERLEAVE, HEIGHT, COLUMNS, DEPTH, HIGH, True, TMA, GELU,
            )  # fmt: skip


@triton.jit
def _down_tile(
    hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    acc = tl.zeros([COLUMNS, PAIRS], tl.float32)
    weight_row, limit = expert * HIDDEN + column_tile * COLUMNS, (expert + 1) * HIDDEN
    for start in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
        weight = tma_load(weights, weight_row, start, limit, WIDTH, COLUMNS, DEPTH, TMA)
        h = tma_load(hidden_ptr, first, start, end, WIDTH, PAIRS, DEPTH, False)
        acc = tl.dot(weight, tl.trans(h), acc)
    pos = first + tl.arange(0, PAIRS)
    ok = pos < end
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    scale = tl.load(scales_ptr + expert * HIDDEN + column, mask=column < HIDDEN, other=0.0)
    h_scale = tl.load(hidden_scales_ptr + pos, mask=ok, other=0.0)
    acc = acc * scale[:, None] * h_scale[None, :]
    store_pairs(acc, pairs_ptr, order_ptr, pos, end, column, HIDDEN, True)


@triton.jit(do_not_specialize=["max_tiles"])
def _down(
    hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, tiles_ptr, max_tiles,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of the hidden size, stored at each pair's index."""
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
    if HEIGHT < 128:
        _down_tile(
            hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile,
            HIDDEN, WIDTH, HEIGHT, COLUMNS, DEPTH, LOW, TMA,
        )  # fmt: skip
    else:
        if end - first <= 16:
            _down_tile(
                hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert,
                column_tile, HIDDEN, WIDTH, 16, COLUMNS, DEPTH, LOW, TMA,
            )  # fmt: skip
        elif end - first <= 64:
            _down_tile(
                hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert,
                column_tile, HIDDEN, WIDTH, 64, COLUMNS, DEPTH, MIDDLE, TMA,
            )  # fmt: skip
        else:
            _down_tile(
                hidden_ptr, hidden_scales_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert,
                column_tile, HIDDEN, WIDTH, HEIGHT, COLUMNS, DEPTH, HIGH, TMA,
            )  # fmt: skip


def fused_moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Fp8,
    down: Fp8,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """``fused_moe.fused_moe`` with fp8 weights; rows and the outputs of the activation are quantized per row."""
    return moe_sum(
        fused_experts(x, ids, gate_up, down, activation, batch_invariant=batch_invariant), ids, weights, shared, out
    )


def fused_moe_add_norm(
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
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``fused_moe.fused_moe_add_norm``; the normed rows have their fp8 form attached."""
    pairs = fused_experts(x, ids, gate_up, down, "silu", batch_invariant=batch_invariant)
    return moe_sum_add_norm(pairs, ids, weights, shared, residual, norm, eps, quantize=True)


def fused_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    gate_up: Fp8,
    down: Fp8,
    activation: Activation,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """``fused_moe.fused_experts`` with fp8 weights."""
    hidden, top_k = x.shape[1], ids.shape[1]
    experts, _, width = down.values.shape
    chosen = get_config(ids.numel(), experts, hidden, width, batch_invariant=batch_invariant)
    aligned = moe_align_block_size(ids, experts, chosen.height)
    inner, pairs = x.new_empty(ids.numel(), width), x.new_empty(ids.numel(), hidden)
    run_gate_up(
        quantized_of(x), gate_up, inner, aligned.order, aligned.tiles, top_k, chosen.height, chosen.gate_up, activation
    )
    run_down(quantize_fp8(inner), down, pairs, aligned.order, aligned.tiles, chosen.height, chosen.down)
    return pairs


def run_gate_up(
    x: Fp8, gate_up: Fp8, inner: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, top_k: int, height: int,
    config: GemmConfig, activation: Activation,
) -> None:  # fmt: skip
    """x [rows, hidden] -> inner [pairs, width], sorted by expert."""
    hidden, width, max_tiles = x.values.shape[1], inner.shape[1], tiles.shape[1]
    low, middle, high = config.stages
    weights = make_descriptor(gate_up.values.flatten(0, 1), 2 * config.columns, config.depth)
    _gate_up[(triton.cdiv(width, config.columns), max_tiles)](
        x.values, x.scales, weights, gate_up.scales, inner, order, tiles, max_tiles, TOP_K=top_k, HIDDEN=hidden,
        WIDTH=width, INTERLEAVE=interleave_group(width), HEIGHT=height, COLUMNS=config.columns, DEPTH=config.depth,
        LOW=low, MIDDLE=middle, HIGH=high, SWAP_AB=config.swap_ab, TMA=has_descriptor(weights),
        GELU=activation == "gelu_tanh", num_warps=config.warps,
    )  # fmt: skip


def run_down(
    inner: Fp8,
    down: Fp8,
    pairs: torch.Tensor,
    order: torch.Tensor,
    tiles: torch.Tensor,
    height: int,
    config: GemmConfig,
) -> None:
    """inner [pairs, width], sorted by expert -> pairs [pairs, hidden], in the order of rows and choices."""
    width, hidden, max_tiles = inner.values.shape[1], pairs.shape[1], tiles.shape[1]
    low, middle, high = config.stages
    weights = make_descriptor(down.values.flatten(0, 1), config.columns, config.depth)
    _down[(triton.cdiv(hidden, config.columns), max_tiles)](
        inner.values, inner.scales, weights, down.scales, pairs, order, tiles, max_tiles, HIDDEN=hidden, WIDTH=width,
        HEIGHT=height, COLUMNS=config.columns, DEPTH=config.depth, LOW=low, MIDDLE=middle, HIGH=high,
        TMA=has_descriptor(weights), num_warps=config.warps,
    )  # fmt: skip

"""MoE layer on a GPU with group-quantized weights and 16-bit rows.

The structure is that of ``fused_moe.py``; ``moe_sum.py`` sums the experts. The weights are always the first operand,
because tensor cores read their converted codes from registers.
"""

from __future__ import annotations

import torch

from runtime.kernels.activation import Activation, store_gated_tile
from runtime.kernels.fused_moe.down import store_pairs
from runtime.kernels.fused_moe.moe_align import moe_align_block_size
from runtime.kernels.fused_moe.moe_sum import moe_sum, moe_sum_add_norm
from runtime.kernels.fused_moe.tile_config import FusedMoEConfig, GemmConfig
from runtime.kernels.group_quantized import GroupQuantized
from runtime.kernels.group_quantized_gemm import group_quantized_gemm
from runtime.kernels.group_quantized_linear import depth_of, group_size
from runtime.kernels.interleave import interleave_group
from runtime.kernels.tma import has_descriptor, make_descriptor
from runtime.kernels.triton_import import tl, triton


def get_config(
    pairs: int, experts: int, element_size: int, gate_up: GroupQuantized, down: GroupQuantized
) -> FusedMoEConfig:
    """As ``tile_config.default_config``. Few pairs get kernels without large tiles, as a program reserves the shared
    memory of its largest tile.

    All configs are batch-invariant: the depth is that of the weight, and pairs are never the first operand.
    """
    pairs_per_expert = pairs / experts
    if element_size == 4:  # no full-precision tensor cores: keep within registers
        chosen = FusedMoEConfig(16, GemmConfig(16, 64, (2, 2, 2), 4), GemmConfig(32, 64, (2, 2, 2), 4))
    elif pairs_per_expert <= 1.5:
        chosen = FusedMoEConfig(16, GemmConfig(64, 128, (4, 4, 4), 4), GemmConfig(128, 128, (3, 3, 3), 4))
    elif pairs_per_expert <= 48:
        chosen = FusedMoEConfig(64, GemmConfig(64, 128, (3, 3, 3), 4), GemmConfig(128, 128, (3, 3, 3), 8))
    else:
        chosen = FusedMoEConfig(128, GemmConfig(32, 128, (3, 3, 3), 4), GemmConfig(64, 128, (3, 3, 3), 4))
    return FusedMoEConfig(
        chosen.height, _clamp_to_shape(chosen.gate_up, gate_up, 2), _clamp_to_shape(chosen.down, down, 1)
    )


def _clamp_to_shape(group_quantized_gemm: GemmConfig, weight: GroupQuantized, parts: int) -> GemmConfig:
    columns, deep = max(16, triton.next_power_of_2(weight.shape[-2] // parts)), depth_of(weight)
    depth = min(group_quantized_gemm.depth, deep) if group_size(weight) == 0 else deep
    return group_quantized_gemm._replace(columns=min(group_quantized_gemm.columns, columns), depth=depth)


@triton.jit
def _gate_up_tile(
    x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, GROUP: tl.constexpr,
    INT4: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    pos = first + tl.arange(0, PAIRS)
    ok = pos < end
    row = tl.load(order_ptr + pos, mask=ok, other=0) // TOP_K
    weight_row = expert * (2 * WIDTH) + column_tile * (2 * COLUMNS)
    acc = group_quantized_gemm(
        x_ptr, row, ok, weights, scales_ptr, weight_row, (expert + 1) * (2 * WIDTH), HIDDEN, GROUP, INT4, 2 * COLUMNS,
        PAIRS, DEPTH, STAGES, TMA,
    )  # fmt: skip
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    store_gated_tile(acc, hidden_ptr, pos, end, column, WIDTH, INTERLEAVE, PAIRS, COLUMNS, True, GELU)


@triton.jit
def _down_tile(
    hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, INT4: tl.constexpr, PAIRS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    pos = first + tl.arange(0, PAIRS)
    ok = pos < end
    weight_row = expert * HIDDEN + column_tile * COLUMNS
    acc = group_quantized_gemm(
        hidden_ptr, pos, ok, weights, scales_ptr, weight_row, (expert + 1) * HIDDEN, WIDTH, GROUP, INT4, COLUMNS,
        PAIRS, DEPTH, STAGES, TMA,
    )  # fmt: skip
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    store_pairs(acc, pairs_ptr, order_ptr, pos, end, column, HIDDEN, True)


@triton.jit(do_not_specialize=["max_tiles"])  # avoids a recompilation per value
def _gate_up(
    x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, tiles_ptr, max_tiles,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, GROUP: tl.constexpr,
    INT4: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr,
    MIDDLE: tl.constexpr, HIGH: tl.constexpr, TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of its width; stores act(gate) * up sorted by expert."""
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
    if HEIGHT == 16:
        _gate_up_tile(
            x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
            TOP_K, HIDDEN, WIDTH, INTERLEAVE, GROUP, INT4, 16, COLUMNS, DEPTH, LOW, TMA, GELU,
        )  # fmt: skip
    else:
        if end - first <= 16:
            _gate_up_tile(
                x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                TOP_K, HIDDEN, WIDTH, INTERLEAVE, GROUP, INT4, 16, COLUMNS, DEPTH, LOW, TMA, GELU,
            )  # fmt: skip
        else:
            if HEIGHT == 64:
                _gate_up_tile(
                    x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                    TOP_K, HIDDEN, WIDTH, INTERLEAVE, GROUP, INT4, 64, COLUMNS, DEPTH, MIDDLE, TMA, GELU,
                )  # fmt: skip
            else:
                if end - first <= 64:
                    _gate_up_tile(
                        x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                        TOP_K, HIDDEN, WIDTH, INTERLEAVE, GROUP, INT4, 64, COLUMNS, DEPTH, MIDDLE, TMA, GELU,
                    )  # fmt: skip
                else:
                    _gate_up_tile(
                        x_ptr, weights, scales_ptr, hidden_ptr, order_ptr, first, end, expert, column_tile,
                        TOP_K, HIDDEN, WIDTH, INTERLEAVE, GROUP, INT4, HEIGHT, COLUMNS, DEPTH, HIGH, TMA, GELU,
                    )  # fmt: skip


@triton.jit(do_not_specialize=["max_tiles"])
def _down(
    hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, tiles_ptr, max_tiles,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, INT4: tl.constexpr, HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of the hidden size, stored at each pair's index."""
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first, end = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
    if HEIGHT == 16:
        _down_tile(
            hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile,
            HIDDEN, WIDTH, GROUP, INT4, 16, COLUMNS, DEPTH, LOW, TMA,
        )  # fmt: skip
    else:
        if end - first <= 16:
            _down_tile(
                hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile,
                HIDDEN, WIDTH, GROUP, INT4, 16, COLUMNS, DEPTH, LOW, TMA,
            )  # fmt: skip
        else:
            if HEIGHT == 64:
                _down_tile(
                    hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile,
                    HIDDEN, WIDTH, GROUP, INT4, 64, COLUMNS, DEPTH, MIDDLE, TMA,
                )  # fmt: skip
            else:
                if end - first <= 64:
                    _down_tile(
                        hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile,
                        HIDDEN, WIDTH, GROUP, INT4, 64, COLUMNS, DEPTH, MIDDLE, TMA,
                    )  # fmt: skip
                else:
                    _down_tile(
                        hidden_ptr, weights, scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile,
                        HIDDEN, WIDTH, GROUP, INT4, HEIGHT, COLUMNS, DEPTH, HIGH, TMA,
                    )  # fmt: skip


def fused_moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: GroupQuantized,
    down: GroupQuantized,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``fused_moe.fused_moe`` with group-quantized weights."""
    return moe_sum(fused_experts(x, ids, gate_up, down, activation), ids, weights, shared, out)


def fused_moe_add_norm(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: GroupQuantized,
    down: GroupQuantized,
    shared: torch.Tensor | None,
    residual: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``fused_moe.fused_moe_add_norm`` with group-quantized weights."""
    return moe_sum_add_norm(fused_experts(x, ids, gate_up, down, "silu"), ids, weights, shared, residual, norm, eps)


def fused_experts(
    x: torch.Tensor, ids: torch.Tensor, gate_up: GroupQuantized, down: GroupQuantized, activation: Activation
) -> torch.Tensor:
    """``fused_moe.fused_experts`` with group-quantized weights."""
    hidden, (experts, _, width) = x.shape[1], down.shape
    chosen = get_config(ids.numel(), experts, x.element_size(), gate_up, down)
    aligned = moe_align_block_size(ids, experts, chosen.height)
    inner, pairs = x.new_empty(ids.numel(), width), x.new_empty(ids.numel(), hidden)
    run_gate_up(
        x, gate_up, inner, aligned.order, aligned.tiles, ids.shape[1], chosen.height, chosen.gate_up, activation
    )
    run_down(inner, down, pairs, aligned.order, aligned.tiles, chosen.height, chosen.down)
    return pairs


def run_gate_up(
    x: torch.Tensor, gate_up: GroupQuantized, inner: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, top_k: int,
    height: int, config: GemmConfig, activation: Activation,
) -> None:  # fmt: skip
    """x [rows, hidden] -> inner [pairs, width], sorted by expert."""
    width, max_tiles = inner.shape[1], tiles.shape[1]
    low, middle, high = config.stages
    int4 = gate_up.values.dtype == torch.uint8
    weights = make_descriptor(
        gate_up.values.flatten(0, 1), 2 * config.columns, config.depth // 2 if int4 else config.depth
    )
    _gate_up[(triton.cdiv(width, config.columns), max_tiles)](
        x, weights, gate_up.scales, inner, order, tiles, max_tiles, TOP_K=top_k, HIDDEN=x.shape[1], WIDTH=width,
        INTERLEAVE=interleave_group(width), GROUP=group_size(gate_up), INT4=int4, HEIGHT=height, COLUMNS=config.columns,
        DEPTH=config.depth, LOW=low, MIDDLE=middle, HIGH=high, TMA=has_descriptor(weights),
        GELU=activation == "gelu_tanh", num_warps=config.warps,
    )  # fmt: skip


def run_down(
    inner: torch.Tensor, down: GroupQuantized, pairs: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor,
    height: int, config: GemmConfig,
) -> None:  # fmt: skip
    """inner [pairs, width], sorted by expert -> pairs [pairs, hidden], in the order of rows and choices."""
    width, hidden, max_tiles = inner.shape[1], pairs.shape[1], tiles.shape[1]
    low, middle, high = config.stages
    int4 = down.values.dtype == torch.uint8
    weights = make_descriptor(down.values.flatten(0, 1), config.columns, config.depth // 2 if int4 else config.depth)
    _down[(triton.cdiv(hidden, config.columns), max_tiles)](
        inner, weights, down.scales, pairs, order, tiles, max_tiles, HIDDEN=hidden, WIDTH=width, GROUP=group_size(down),
        INT4=int4, HEIGHT=height, COLUMNS=config.columns, DEPTH=config.depth, LOW=low, MIDDLE=middle, HIGH=high,
        TMA=has_descriptor(weights), num_warps=config.warps,
    )  # fmt: skip

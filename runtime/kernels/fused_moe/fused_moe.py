"""Mixture of experts: gated MLPs selected per row, weighted and summed. In torch, and on a GPU.

On a GPU token-expert pairs are aligned by expert, then there are a gate_up GEMM with the gated activation as epilogue
and a down GEMM per expert, and the weighted sum per row. The sum may be fused with the residual addition and the next
RMSNorm. Weights are unquantized, fp8 (`Fp8`; rows are quantized too, and scales are applied in the epilogue),
group-quantized (`GroupQuantized`, with 16-bit rows) or `Nvfp4` (with 16-bit rows). On Hopper, ``grouped_gemm.py`` has
the GEMMs of fp8 weights in some shapes.

A tile has pairs of one expert. With few pairs per expert, reading the weights dominates, so the weights are the first
operand (swap AB), and the tile has as many columns as there are pairs: 16, 64, 128, or up to TAIL more, selected per
tile. With many pairs, arithmetic dominates, and pairs are the rows, 64 or 128. Group-quantized and NVFP4 weights are
always the first operand, because tensor cores read their converted codes from registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation, act_and_mul_reference, interleave_group, store_gated_tile
from runtime.kernels.common import (
    add_residual,
    has_descriptor,
    make_descriptor,
    multiprocessors,
    normed_row,
    tl,
    tma_load,
    triton,
    wide,
)
from runtime.kernels.fused_moe import tile_config
from runtime.kernels.fused_moe.grouped_gemm import run_grouped_down, run_grouped_gate_up, supports_grouped
from runtime.kernels.fused_moe.moe_align import AlignedTokens, is_tail_of_previous_tile, moe_align_block_size
from runtime.kernels.linear import group_quantized_gemm, group_size, quantized_linear_torch
from runtime.kernels.nvfp4 import Nvfp4, nvfp4_gemm
from runtime.kernels.nvfp4_gemm import rows_per_tile, run_nvfp4_experts, supports_nvfp4_gemm
from runtime.kernels.quantized_tensor import (
    FP8_MAX,
    MIN_SCALE,
    Fp8,
    GroupQuantized,
    attach_quantized,
    empty_fp8,
    quantize_fp8,
    quantized_of,
    store_quantized_row,
)

Matrices = torch.Tensor | Fp8 | GroupQuantized | Nvfp4  # weights of all experts, [experts, outputs, inputs]
PROGRAMS_PER_SM = 2  # resident programs per SM of the persistent kernel

# Rows of the batched GEMM, including padding, per real row: beyond it, one GEMM per expert is faster, unless rows are
# so few that the number of calls dominates.
PADDING_LIMIT = 2
FEW_ROWS = 512


def moe_reference(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Matrices, down: Matrices,
    shared: torch.Tensor | None, activation: Activation = "silu", out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Computes ``shared[t] + sum_j weights[t, j] * expert[ids[t, j]](x[t])``.

    The sum is accumulated in float32 (float64 for float64).

    Args:
        x: [rows, hidden]; ids: int32 [rows, top_k], -1 for no expert; weights: float [rows, top_k].
        gate_up: [experts, 2 * width, hidden], gate rows first; down: [experts, hidden, width].
        shared: [rows, hidden] to add, or None.
        activation: of the gated MLPs.
        out: receives the result, if not None.

    Returns:
        [rows, hidden] in x's dtype.
    """
    up = wide(x.dtype)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up).clone()
    for expert in ids[ids >= 0].unique().tolist():  # per expert, so that only one is dequantized at a time
        row, choice = (ids == expert).nonzero(as_tuple=True)
        hidden = act_and_mul_reference(expert_linear(x[row], gate_up, expert), activation)
        total.index_add_(0, row, weights[row, choice, None].to(up) * expert_linear(hidden, down, expert).to(up))
    return store_result(total.to(x.dtype), out)


def expert_linear(x: torch.Tensor, weights: Matrices, expert: int) -> torch.Tensor:
    """Returns x [rows, inputs] @ weights[expert]^T."""
    weight = weights[expert]
    return F.linear(x, weight) if isinstance(weight, torch.Tensor) else quantized_linear_torch(x, weight, None)


def store_result(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Returns `result`, copied to `out` if not None."""
    return result if out is None else out.copy_(result)


def moe_torch(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Matrices, down: Matrices,
    shared: torch.Tensor | None, activation: Activation = "silu", out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Computes `moe_reference`, with few calls for unquantized weights.

    Rows are sorted by expert, and batched if there are few. The result of a row depends on the other rows only by
    rounding.
    """
    if not isinstance(gate_up, torch.Tensor) or not isinstance(down, torch.Tensor):
        return moe_reference(x, ids, weights, gate_up, down, shared, activation, out)
    experts, flat = len(gate_up), ids.flatten().long()
    num_padding, counts = torch.bincount(flat + 1, minlength=experts + 1).split([1, experts])
    order = flat.argsort(stable=True)[int(num_padding) :]  # pairs (row, choice) grouped by expert
    inputs = x[order // ids.shape[1]]
    if experts * int(counts.max()) <= max(PADDING_LIMIT * len(flat), FEW_ROWS):
        outputs = _batched(inputs, flat[order], counts, gate_up, down, activation)
    else:
        hidden = act_and_mul_reference(grouped_gemm(inputs, counts, gate_up), activation)
        outputs = grouped_gemm(hidden, counts, down)
    return store_result(sum_choices(outputs, order, weights, shared), out)


def _batched(
    inputs: torch.Tensor, experts: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    activation: Activation,
) -> torch.Tensor:  # fmt: skip
    """Runs one batched GEMM for all experts, padded to the most rows of an expert: few calls, for few rows."""
    starts = counts.cumsum(0) - counts
    padded_index = experts * int(counts.max()) + torch.arange(len(inputs), device=inputs.device) - starts[experts]
    padded = inputs.new_zeros(len(counts) * int(counts.max()), inputs.shape[1])
    padded[padded_index] = inputs
    hidden = act_and_mul_reference(
        torch.bmm(padded.unflatten(0, (len(counts), -1)), gate_up.transpose(1, 2)), activation
    )
    return torch.bmm(hidden, down.transpose(1, 2)).flatten(0, 1)[padded_index]


def grouped_gemm(x: torch.Tensor, counts: torch.Tensor, stack: torch.Tensor) -> torch.Tensor:
    """Multiplies the first ``counts[0]`` rows of `x` [rows, inputs] by ``stack[0]`` [outputs, inputs], the next
    ``counts[1]`` by ``stack[1]``, and so on. Returns [rows, outputs].
    """
    aligned = x.shape[1] % 8 == stack.shape[1] % 8 == 0  # grouped_mm needs strides of 16 bytes
    if x.is_cuda and x.dtype == torch.bfloat16 and aligned:
        return F.grouped_mm(x, stack.transpose(1, 2), offs=counts.cumsum(0).int())
    sizes = counts.tolist()
    out = x.new_empty(len(x), stack.shape[1])
    for weight, source, target in zip(stack, x.split(sizes), out.split(sizes), strict=True):
        if len(source):
            torch.mm(source, weight.t(), out=target)
    return out


def sum_choices(
    outputs: torch.Tensor, order: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None
) -> torch.Tensor:
    """Returns the weighted sum per row, [rows, hidden], plus `shared`, added up in the order of the choices.

    Args:
        outputs: [pairs, hidden], of the token-expert pairs `order`; pair p is choice ``p % top_k`` of row
            ``p // top_k``. Pairs that `order` does not list count as 0.
        weights: [rows, top_k].
    """
    (rows, top_k), up = weights.shape, wide(outputs.dtype)
    by_choice = outputs.new_zeros(rows * top_k, outputs.shape[1]).index_copy_(0, order, outputs)
    by_choice = by_choice.view(rows, top_k, -1).to(up)
    total = torch.zeros_like(by_choice[:, 0]) if shared is None else shared.to(up)
    for choice, weight in enumerate(weights.to(up).split(1, dim=1)):
        total = torch.addcmul(total, weight, by_choice[:, choice])
    return total.to(outputs.dtype)


@triton.jit
def _gate_up_tile(
    x_ptr, x_scales_ptr, weights, scales_ptr, decode_ptr, hidden_ptr, order_ptr, first_pos, end_pos, expert,
    column_tile, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr, PAIRS: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, SWAP_AB: tl.constexpr, TMA: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """Computes a tile of PAIRS pairs of one expert, and the TAIL pairs after them. The tail always swaps AB."""
    depth = tl.arange(0, DEPTH)
    pos = first_pos + tl.arange(0, PAIRS)
    ok = pos < end_pos
    row = tl.load(order_ptr + pos, mask=ok, other=0) // TOP_K
    x_at = x_ptr + row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
    if TAIL > 0:
        tail_pos = first_pos + PAIRS + tl.arange(0, TAIL)
        tail_ok = tail_pos < end_pos
        tail_row = tl.load(order_ptr + tail_pos, mask=tail_ok, other=0) // TOP_K
        y_at = x_ptr + tail_row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
        tail_acc = tl.zeros([2 * COLUMNS, TAIL], tl.float32)
    weight_row = expert * (2 * WIDTH) + column_tile * (2 * COLUMNS)
    limit = (expert + 1) * (2 * WIDTH)
    if FORMAT == "int4" or FORMAT == "group":
        acc = group_quantized_gemm(
            x_ptr, row, ok, weights, scales_ptr, decode_ptr, weight_row, limit, HIDDEN, GROUP, FORMAT == "int4",
            2 * COLUMNS, PAIRS, DEPTH, STAGES, TMA,
        )  # fmt: skip
    elif FORMAT == "nvfp4":
        expert_scales = scales_ptr + expert.to(tl.int64) * (2 * WIDTH * ((HIDDEN + 63) // 64))
        acc = nvfp4_gemm(
            x_ptr, row, ok, weights, expert_scales, 2 * WIDTH, weight_row, limit, HIDDEN, 2 * COLUMNS, PAIRS, STAGES,
            TMA,
        )  # fmt: skip
    else:
        if SWAP_AB:
            acc = tl.zeros([2 * COLUMNS, PAIRS], tl.float32)
        else:
            acc = tl.zeros([PAIRS, 2 * COLUMNS], tl.float32)
        for start in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
            weight = tma_load(weights, weight_row, start, limit, HIDDEN, 2 * COLUMNS, DEPTH, TMA)
            inside = tl.full([1, DEPTH], 1, tl.int1)
            if HIDDEN % DEPTH != 0:
                inside = (start + depth < HIDDEN)[None, :]
            x = tl.load(x_at + start, mask=ok[:, None] & inside, other=0.0)
            if SWAP_AB:
                acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
            else:
                acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
            if TAIL > 0:
                y = tl.load(y_at + start, mask=tail_ok[:, None] & inside, other=0.0)
                tail_acc = tl.dot(weight, tl.trans(y), tail_acc, input_precision="ieee")
        if FORMAT == "fp8":
            weight_rows = weight_row + tl.arange(0, 2 * COLUMNS)
            scale = tl.load(scales_ptr + weight_rows, mask=weight_rows < limit, other=0.0)
            x_scale = tl.load(x_scales_ptr + row, mask=ok, other=0.0)
            if SWAP_AB:
                acc = acc * scale[:, None] * x_scale[None, :]
            else:
                acc = acc * x_scale[:, None] * scale[None, :]
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    store_gated_tile(acc, hidden_ptr, pos, end_pos, column, WIDTH, INTERLEAVE, PAIRS, COLUMNS, SWAP_AB, GELU)
    if TAIL > 0:
        store_gated_tile(tail_acc, hidden_ptr, tail_pos, end_pos, column, WIDTH, INTERLEAVE, TAIL, COLUMNS, True, GELU)


@triton.jit(do_not_specialize=["max_tiles"])  # avoids a recompilation per value
def _gate_up(
    x_ptr, x_scales_ptr, weights, scales_ptr, decode_ptr, hidden_ptr, order_ptr, tiles_ptr, max_tiles,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, FORMAT: tl.constexpr,
    GROUP: tl.constexpr, HEIGHT: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    LOW: tl.constexpr, MIDDLE: tl.constexpr, HIGH: tl.constexpr, SWAP_AB: tl.constexpr, TMA: tl.constexpr,
    GELU: tl.constexpr,
):  # fmt: skip
    """Computes a tile of one expert's pairs and COLUMNS of its width per program; stores act(gate) * up.

    The results are sorted by expert.

    FORMAT of the weights: "float", "fp8", "nvfp4", "int4" or "group" (int8 or e4m3 codes). GROUP: inputs per scale of
    the latter two, see `group_quantized_gemm`, also for `decode_ptr`. `x_scales_ptr` and `scales_ptr` are None without
    scales.
    """
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first_pos, end_pos = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
    remaining = end_pos - first_pos
    if FORMAT == "float" and is_tail_of_previous_tile(tiles_ptr, tile, expert, remaining, TAIL):
        return
    if HEIGHT < 64:
        _gate_up_tile(
            x_ptr, x_scales_ptr, weights, scales_ptr, decode_ptr, hidden_ptr, order_ptr, first_pos, end_pos, expert,
            column_tile, TOP_K, HIDDEN, WIDTH, INTERLEAVE, FORMAT, GROUP, HEIGHT, 0, COLUMNS, DEPTH, LOW, SWAP_AB, TMA,
            GELU,
        )  # fmt: skip
    elif SWAP_AB and remaining <= 16:
        _gate_up_tile(
            x_ptr, x_scales_ptr, weights, scales_ptr, decode_ptr, hidden_ptr, order_ptr, first_pos, end_pos, expert,
            column_tile, TOP_K, HIDDEN, WIDTH, INTERLEAVE, FORMAT, GROUP, 16, 0, COLUMNS, DEPTH, LOW, SWAP_AB, TMA,
            GELU,
        )  # fmt: skip
    elif HEIGHT == 64 or remaining <= 64:
        _gate_up_tile(
            x_ptr, x_scales_ptr, weights, scales_ptr, decode_ptr, hidden_ptr, order_ptr, first_pos, end_pos, expert,
            column_tile, TOP_K, HIDDEN, WIDTH, INTERLEAVE, FORMAT, GROUP, 64, 0, COLUMNS, DEPTH, MIDDLE, SWAP_AB, TMA,
            GELU,
        )  # fmt: skip
    elif FORMAT != "float" or (remaining <= HEIGHT) | (remaining > HEIGHT + TAIL):
        _gate_up_tile(
            x_ptr, x_scales_ptr, weights, scales_ptr, decode_ptr, hidden_ptr, order_ptr, first_pos, end_pos, expert,
            column_tile, TOP_K, HIDDEN, WIDTH, INTERLEAVE, FORMAT, GROUP, HEIGHT, 0, COLUMNS, DEPTH, HIGH, SWAP_AB, TMA,
            GELU,
        )  # fmt: skip
    elif TAIL > 0:
        _gate_up_tile(
            x_ptr, x_scales_ptr, weights, scales_ptr, decode_ptr, hidden_ptr, order_ptr, first_pos, end_pos, expert,
            column_tile, TOP_K, HIDDEN, WIDTH, INTERLEAVE, FORMAT, GROUP, HEIGHT, TAIL, COLUMNS, DEPTH, HIGH, SWAP_AB,
            TMA, GELU,
        )  # fmt: skip


def run_gate_up(
    x: torch.Tensor | Fp8, gate_up: Matrices, inner: torch.Tensor, aligned: AlignedTokens, top_k: int,
    config: tile_config.GemmConfig, activation: Activation,
) -> None:  # fmt: skip
    """Runs the gate_up GEMM of x [rows, hidden]. Writes `inner` [pairs, width], sorted by expert."""
    rows, x_scales = (x.values, x.scales) if isinstance(x, Fp8) else (x, None)
    weights, scales, decode, format, group = _weight_args(gate_up, 2 * config.columns, config.depth, rows.dtype)
    width, max_tiles, height = inner.shape[1], aligned.tiles.shape[1], aligned.rows
    low, middle, high = config.stages
    _gate_up[(triton.cdiv(width, config.columns), max_tiles)](
        rows, x_scales, weights, scales, decode, inner, aligned.order, aligned.tiles, max_tiles, TOP_K=top_k,
        HIDDEN=rows.shape[1], WIDTH=width, INTERLEAVE=interleave_group(width), FORMAT=format, GROUP=group,
        HEIGHT=height, TAIL=config.tail_rows(height) if format == "float" else 0, COLUMNS=config.columns,
        DEPTH=config.depth, LOW=low, MIDDLE=middle, HIGH=high, SWAP_AB=config.swap_ab, TMA=has_descriptor(weights),
        GELU=activation == "gelu_tanh", num_warps=config.warps,
    )  # fmt: skip


def _weight_args(
    weights: Matrices, columns: int, depth: int, dtype: torch.dtype
) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, str, int]:
    """Returns kernel arguments of weights that are multiplied by rows of `dtype`: the source of `tma_load` for tiles
    [columns, depth], the scales, `decode_ptr`, FORMAT and GROUP.
    """
    if isinstance(weights, torch.Tensor):
        return make_descriptor(weights.flatten(0, 1), columns, depth), None, None, "float", 0
    codes, decode, format, group = weights.values.flatten(0, 1), None, "fp8", 0
    if isinstance(weights, GroupQuantized):
        decode, format = weights.decode_arg(dtype), "int4" if weights.is_int4 else "group"
        group = group_size(weights)
    elif isinstance(weights, Nvfp4):
        format = "nvfp4"
    stored_depth = depth // {"int4": 2, "nvfp4": 4}.get(format, 1)
    return make_descriptor(codes, columns, stored_depth), weights.scales, decode, format, group


@triton.jit
def _down_tile(
    hidden, hidden_scales_ptr, tail, weights, scales_ptr, decode_ptr, pairs_ptr, order_ptr, first_pos, end_pos, expert,
    column_tile, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    PAIRS: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    SWAP_AB: tl.constexpr, TMA: tl.constexpr, HIDDEN_TMA: tl.constexpr,
):  # fmt: skip
    """Computes one tile of the down GEMM; see `_gate_up_tile`."""
    if FORMAT == "int4" or FORMAT == "group":
        row = first_pos + tl.arange(0, PAIRS)
        ok, weight_row = row < end_pos, expert * HIDDEN + column_tile * COLUMNS
        acc = group_quantized_gemm(
            hidden, row, ok, weights, scales_ptr, decode_ptr, weight_row, (expert + 1) * HIDDEN, WIDTH, GROUP,
            FORMAT == "int4", COLUMNS, PAIRS, DEPTH, STAGES, TMA,
        )  # fmt: skip
    elif FORMAT == "nvfp4":
        row = first_pos + tl.arange(0, PAIRS)
        ok, weight_row = row < end_pos, expert * HIDDEN + column_tile * COLUMNS
        expert_scales = scales_ptr + expert.to(tl.int64) * (HIDDEN * ((WIDTH + 63) // 64))
        acc = nvfp4_gemm(
            hidden, row, ok, weights, expert_scales, HIDDEN, weight_row, (expert + 1) * HIDDEN, WIDTH, COLUMNS, PAIRS,
            STAGES, TMA,
        )  # fmt: skip
    else:
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
    if FORMAT == "fp8":
        row = first_pos + tl.arange(0, PAIRS)
        ok, column = row < end_pos, column_tile * COLUMNS + tl.arange(0, COLUMNS)
        scale = tl.load(scales_ptr + expert * HIDDEN + column, mask=column < HIDDEN, other=0.0)
        hidden_scale = tl.load(hidden_scales_ptr + row, mask=ok, other=0.0)
        acc = acc * scale[:, None] * hidden_scale[None, :]
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    _store_pairs(acc, pairs_ptr, order_ptr, first_pos + tl.arange(0, PAIRS), end_pos, column, HIDDEN, SWAP_AB)
    if TAIL > 0:
        _store_pairs(
            tail_acc, pairs_ptr, order_ptr, first_pos + PAIRS + tl.arange(0, TAIL), end_pos, column, HIDDEN, True
        )


@triton.jit
def _store_pairs(acc, pairs_ptr, order_ptr, pos, end_pos, column, HIDDEN: tl.constexpr, SWAP_AB: tl.constexpr):
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
    hidden_ptr, middle, hidden, tail, hidden_scales_ptr, weights, scales_ptr, decode_ptr, pairs_ptr, order_ptr,
    tiles_ptr, max_tiles, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    HEIGHT: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr,
    MIDDLE: tl.constexpr, HIGH: tl.constexpr, SWAP_AB: tl.constexpr, TMA: tl.constexpr, HIDDEN_TMA: tl.constexpr,
):  # fmt: skip
    """Computes a tile of one expert's pairs and COLUMNS of the hidden size per program.

    Each result is stored at the index of its pair.

    `middle`, `hidden`, `tail`: descriptors of `hidden_ptr` with 64, HEIGHT and TAIL rows; None unless FORMAT is
    "float". See `_gate_up`.
    """
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    first_pos, end_pos = tl.load(tiles_ptr + max_tiles + tile), tl.load(tiles_ptr + 2 * max_tiles + tile)
    remaining = end_pos - first_pos
    if FORMAT == "float" and is_tail_of_previous_tile(tiles_ptr, tile, expert, remaining, TAIL):
        return
    if FORMAT != "float":
        middle, hidden, tail = hidden_ptr, hidden_ptr, hidden_ptr
    if HEIGHT < 64:
        _down_tile(
            hidden_ptr, hidden_scales_ptr, tail, weights, scales_ptr, decode_ptr, pairs_ptr, order_ptr, first_pos,
            end_pos, expert, column_tile, HIDDEN, WIDTH, FORMAT, GROUP, HEIGHT, 0, COLUMNS, DEPTH, LOW, SWAP_AB, TMA,
            False,
        )  # fmt: skip
    elif SWAP_AB and remaining <= 16:
        _down_tile(
            hidden_ptr, hidden_scales_ptr, tail, weights, scales_ptr, decode_ptr, pairs_ptr, order_ptr, first_pos,
            end_pos, expert, column_tile, HIDDEN, WIDTH, FORMAT, GROUP, 16, 0, COLUMNS, DEPTH, LOW, SWAP_AB, TMA, False,
        )  # fmt: skip
    elif HEIGHT == 64 or remaining <= 64:
        _down_tile(
            middle, hidden_scales_ptr, tail, weights, scales_ptr, decode_ptr, pairs_ptr, order_ptr, first_pos, end_pos,
            expert, column_tile, HIDDEN, WIDTH, FORMAT, GROUP, 64, 0, COLUMNS, DEPTH, MIDDLE, SWAP_AB, TMA, HIDDEN_TMA,
        )  # fmt: skip
    elif FORMAT != "float" or (remaining <= HEIGHT) | (remaining > HEIGHT + TAIL):
        _down_tile(
            hidden, hidden_scales_ptr, tail, weights, scales_ptr, decode_ptr, pairs_ptr, order_ptr, first_pos, end_pos,
            expert, column_tile, HIDDEN, WIDTH, FORMAT, GROUP, HEIGHT, 0, COLUMNS, DEPTH, HIGH, SWAP_AB, TMA,
            HIDDEN_TMA,
        )  # fmt: skip
    elif TAIL > 0:
        _down_tile(
            hidden, hidden_scales_ptr, tail, weights, scales_ptr, decode_ptr, pairs_ptr, order_ptr, first_pos, end_pos,
            expert, column_tile, HIDDEN, WIDTH, FORMAT, GROUP, HEIGHT, TAIL, COLUMNS, DEPTH, HIGH, SWAP_AB, TMA,
            HIDDEN_TMA,
        )  # fmt: skip


@triton.jit(do_not_specialize=["max_tiles"])
def _persistent_down(
    x_desc, weights, pairs_ptr, order_ptr, tiles_ptr, max_tiles,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, TILES_P2: tl.constexpr, TMA: tl.constexpr, X_TMA: tl.constexpr,
):  # fmt: skip
    """Runs the down GEMM as a persistent kernel, for experts with many pairs.

    As many programs as fit on the device loop over the tiles, which overlaps the loads of the next tile with the
    epilogue of the current one. One program processes every n-th work item: a tile of one expert's pairs times COLUMNS
    of the hidden size. TILES_P2: at least `max_tiles`.
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


def run_down(
    inner: torch.Tensor | Fp8, down: Matrices, pairs: torch.Tensor, aligned: AlignedTokens,
    config: tile_config.GemmConfig,
) -> None:  # fmt: skip
    """Runs the down GEMM of `inner` [pairs, width], sorted by expert.

    Writes `pairs` [pairs, hidden], in the order of rows and choices.
    """
    if isinstance(inner, torch.Tensor) and isinstance(down, torch.Tensor) and use_persistent(aligned, config):
        run_persistent(inner, down, pairs, aligned, config)
        return
    rows, inner_scales = (inner.values, inner.scales) if isinstance(inner, Fp8) else (inner, None)
    weights, scales, decode, format, group = _weight_args(down, config.columns, config.depth, rows.dtype)
    width, hidden, max_tiles, height = rows.shape[1], pairs.shape[1], aligned.tiles.shape[1], aligned.rows
    low, middle, high = config.stages
    tail, descs = 0, [None, None, None]
    if format == "float":
        tail = config.tail_rows(height)
        descs = [make_descriptor(rows, n, config.depth) for n in (64, height, tail or height)]
    _down[(triton.cdiv(hidden, config.columns), max_tiles)](
        rows, *descs, inner_scales, weights, scales, decode, pairs, aligned.order, aligned.tiles, max_tiles,
        HIDDEN=hidden, WIDTH=width, FORMAT=format, GROUP=group, HEIGHT=height, TAIL=tail, COLUMNS=config.columns,
        DEPTH=config.depth, LOW=low, MIDDLE=middle, HIGH=high, SWAP_AB=config.swap_ab, TMA=has_descriptor(weights),
        HIDDEN_TMA=format == "float" and has_descriptor(descs[0]), num_warps=config.warps,
    )  # fmt: skip


def use_persistent(aligned: AlignedTokens, config: tile_config.GemmConfig) -> bool:
    """Whether tiles are contiguous and pairs are the rows of the GEMM, where the persistent kernel is faster."""
    return not aligned.gaps and not config.swap_ab and aligned.rows >= 128


def run_persistent(
    inner: torch.Tensor, down: torch.Tensor, pairs: torch.Tensor, aligned: AlignedTokens, config: tile_config.GemmConfig
) -> None:  # fmt: skip
    """Does the same as `run_down`, with the persistent kernel."""
    width, hidden, max_tiles = inner.shape[1], pairs.shape[1], aligned.tiles.shape[1]
    weights = make_descriptor(down.flatten(0, 1), config.columns, config.depth)
    x_desc = make_descriptor(inner, aligned.rows, config.depth)
    work_items = max_tiles * triton.cdiv(hidden, config.columns)
    _persistent_down[(min(work_items, PROGRAMS_PER_SM * multiprocessors(inner.device)),)](
        x_desc, weights, pairs, aligned.order, aligned.tiles, max_tiles, HIDDEN=hidden, WIDTH=width,
        HEIGHT=aligned.rows, COLUMNS=config.columns, DEPTH=config.depth, STAGES=config.stages[2],
        TILES_P2=triton.next_power_of_2(max_tiles), TMA=has_descriptor(weights), X_TMA=has_descriptor(x_desc),
        num_warps=config.warps,
    )  # fmt: skip


class TopKOutputs(NamedTuple):
    """Outputs of the experts, to be summed by the consumer."""

    pairs: torch.Tensor  # [rows * top_k, hidden], choice c of row r at r * top_k + c; undefined for expert -1
    ids: torch.Tensor  # int [rows, top_k], < 0: no expert
    weights: torch.Tensor  # float32 or float64 [rows, top_k]
    scale: torch.Tensor  # float32 or float64 [experts], a factor of each expert's weights


def moe_sum_reference(outputs: TopKOutputs) -> torch.Tensor:
    """Returns [rows, hidden] in the dtype of the outputs, summed in the order of rank."""
    (rows, top_k), dtype = outputs.ids.shape, outputs.pairs.dtype
    weights = outputs.weights * outputs.scale[outputs.ids.clamp(min=0)]
    total = outputs.pairs.new_zeros(rows, outputs.pairs.shape[1], dtype=wide(dtype))
    for choice, expert_output in enumerate(outputs.pairs.view(rows, top_k, -1).to(wide(dtype)).unbind(1)):
        total += torch.where(outputs.ids[:, choice, None] < 0, 0, weights[:, choice, None] * expert_output)
    return total.to(dtype)


@triton.jit
def weighted_sum(
    pairs_ptr, ids_ptr, weights_ptr, scale_ptr, row, column, ok,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Returns the weighted sum of one row's experts in the order of rank, float32 [COLUMNS]."""
    acc = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(TOP_K):
        expert = tl.load(ids_ptr + row * TOP_K + choice)
        valid = expert >= 0  # nothing is stored for expert -1
        value = tl.load(pairs_ptr + (row * TOP_K + choice) * HIDDEN + column, mask=ok & valid, other=0.0)
        weight = tl.load(weights_ptr + row * TOP_K + choice)
        if SCALED:
            weight *= tl.load(scale_ptr + expert, mask=valid, other=0.0)
        acc += weight * value.to(tl.float32)
    return acc


@triton.jit
def _moe_sum(
    pairs_ptr, ids_ptr, weights_ptr, shared_ptr, residual_ptr, norm_ptr, out_ptr, sum_ptr, values_ptr, scales_ptr, eps,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SHARED: tl.constexpr, NORM: tl.constexpr,
    WEIGHTED: tl.constexpr, QUANTIZED: tl.constexpr, FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """Computes COLUMNS of one row per program; with NORM, the full row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < HIDDEN
    acc = weighted_sum(pairs_ptr, ids_ptr, weights_ptr, weights_ptr, row, column, ok, TOP_K, HIDDEN, COLUMNS, False)
    if SHARED:
        acc += tl.load(shared_ptr + row * HIDDEN + column, mask=ok, other=0.0).to(tl.float32)
    if NORM:
        acc = add_residual(acc, residual_ptr, sum_ptr, row * HIDDEN + column, ok)
        acc = normed_row(acc, norm_ptr, column, ok, eps, HIDDEN, WEIGHTED)
    out = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * HIDDEN + column, out, mask=ok)
    if QUANTIZED:
        values_at = values_ptr + row * HIDDEN + column
        store_quantized_row(out.to(tl.float32), values_at, scales_ptr + row, ok, FP8_MAX, MIN_SCALE)


def moe_sum(
    pairs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns the weighted sum per row, [rows, hidden], in `out` if not None.

    Args:
        pairs: [rows * top_k, hidden], choice c of row r at r * top_k + c.
        shared: [rows, hidden] to add, or None.
    """
    (rows, top_k), hidden = ids.shape, pairs.shape[1]
    if out is None:
        out = pairs.new_empty(rows, hidden)
    tile = min(1024, triton.next_power_of_2(hidden))
    _moe_sum[(rows, triton.cdiv(hidden, tile))](
        pairs, ids, weights, pairs if shared is None else shared, pairs, pairs, out, out, out, weights, 0.0,
        TOP_K=top_k, HIDDEN=hidden, COLUMNS=tile, SHARED=shared is not None, NORM=False, WEIGHTED=False,
        QUANTIZED=False, FP8_MAX=FP8_MAX, MIN_SCALE=MIN_SCALE, num_warps=4,
    )  # fmt: skip
    return out


def moe_sum_add_norm(
    pairs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None,
    residual: torch.Tensor, norm: torch.Tensor | None, eps: float, *, quantize: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Computes `add_rms_norm_reference` of the result of `moe_sum` and `residual` [rows, hidden]; rounds the sum once.

    Args:
        quantize: attach the fp8 form to the normed rows.
    """
    (rows, top_k), hidden = ids.shape, pairs.shape[1]
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    quantized = empty_fp8(out) if quantize else Fp8(out, weights)
    _moe_sum[(rows, 1)](
        pairs, ids, weights, pairs if shared is None else shared, residual, pairs if norm is None else norm, out,
        total, quantized.values, quantized.scales, eps, TOP_K=top_k, HIDDEN=hidden,
        COLUMNS=triton.next_power_of_2(hidden), SHARED=shared is not None, NORM=True, WEIGHTED=norm is not None,
        QUANTIZED=quantize, FP8_MAX=FP8_MAX, MIN_SCALE=MIN_SCALE, num_warps=8 if hidden > 2048 else 4,
    )  # fmt: skip
    return attach_quantized(out, quantized) if quantize else out, total


def fused_experts(
    x: torch.Tensor, ids: torch.Tensor, gate_up: Matrices, down: Matrices, activation: Activation, *,
    batch_invariant: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Returns the outputs of each row's experts, [rows * top_k, hidden]; undefined for expert -1."""
    hidden, (experts, _, width), is_fp8 = x.shape[1], down.shape, isinstance(gate_up, Fp8)
    pairs = x.new_empty(ids.numel(), hidden)
    grouped = None if batch_invariant else select_grouped_config(x, ids.numel(), gate_up, down)
    if grouped is not None:
        aligned = moe_align_block_size(ids, experts, grouped.gate_up.pairs)
        inner = run_grouped_gate_up(quantized_of(x), gate_up, aligned, ids.shape[1], grouped.gate_up, activation)
        run_grouped_down(inner, down, pairs, aligned, grouped.down)
        return pairs
    if (
        isinstance(gate_up, Nvfp4)
        and isinstance(down, Nvfp4)
        and supports_nvfp4_gemm(x, gate_up, down, rows=len(pairs))
    ):
        aligned = moe_align_block_size(ids, experts, rows_per_tile(len(pairs), experts))
        inner = x.new_empty(len(pairs), width)
        run_nvfp4_experts(x, gate_up, inner, aligned, ids.shape[1], activation)
        run_nvfp4_experts(inner, down, pairs, aligned, ids.shape[1])
        return pairs
    config = _select_config(x, ids.numel(), gate_up, down, batch_invariant=batch_invariant)
    aligned = moe_align_block_size(ids, experts, config.height)
    inner = x.new_empty(ids.numel(), width)
    run_gate_up(quantized_of(x) if is_fp8 else x, gate_up, inner, aligned, ids.shape[1], config.gate_up, activation)
    run_down(quantize_fp8(inner) if is_fp8 else inner, down, pairs, aligned, config.down)
    return pairs


def select_grouped_config(
    x: torch.Tensor, pairs: int, gate_up: Matrices, down: Matrices
) -> tile_config.GroupedConfig | None:
    """Returns the config of ``grouped_gemm.py``; None if its kernels do not support the inputs or are slower."""
    if not isinstance(gate_up, Fp8) or not isinstance(down, Fp8) or not supports_grouped(x, gate_up, down, pairs):
        return None
    return tile_config.grouped_config(pairs, *down.shape)


def _select_config(
    x: torch.Tensor, pairs: int, gate_up: Matrices, down: Matrices, *, batch_invariant: bool
) -> tile_config.FusedMoEConfig:
    experts, hidden, width = down.shape
    device = tile_config.device_name(x.device)
    if not isinstance(gate_up, torch.Tensor) and x.element_size() == 2 and not batch_invariant:
        key = tile_config.shape_key(experts, hidden, width, tile_config.format_of(gate_up))
        if (tuned := tile_config.tuned_config(pairs / experts, key, device)) is not None:
            return tuned
    if isinstance(gate_up, Fp8):
        return tile_config.fp8_config(pairs, experts, hidden, width, batch_invariant=batch_invariant)
    if isinstance(gate_up, GroupQuantized | Nvfp4):
        assert isinstance(down, GroupQuantized | Nvfp4)
        return tile_config.group_quantized_config(pairs, experts, x.element_size(), gate_up, down)
    if batch_invariant:
        return tile_config.batch_invariant_config(pairs, experts, x.element_size(), hidden, width)
    return tile_config.get_config(pairs, experts, x.element_size(), hidden, width, device)


def fused_moe(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Matrices, down: Matrices,
    shared: torch.Tensor | None, activation: Activation = "silu", out: torch.Tensor | None = None, *,
    batch_invariant: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Computes `moe_reference` on a GPU, for contiguous tensors, float32 `weights` and interleaved `gate_up` rows.

    Deterministic, no host sync. With fp8 weights, rows and the outputs of the activation are quantized per row; the
    latter per row and group of columns in ``grouped_gemm.py``.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows. ``grouped_gemm.py`` is not used.
    """
    pairs = fused_experts(x, ids, gate_up, down, activation, batch_invariant=batch_invariant)
    return moe_sum(pairs, ids, weights, shared, out)


def fused_moe_add_norm(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Matrices, down: Matrices,
    shared: torch.Tensor | None, residual: torch.Tensor, norm: torch.Tensor | None, eps: float, *,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Computes `add_rms_norm_reference` of the result of `fused_moe` and `residual`.

    With fp8 weights the normed rows have their fp8 form attached.
    """
    pairs = fused_experts(x, ids, gate_up, down, "silu", batch_invariant=batch_invariant)
    return moe_sum_add_norm(pairs, ids, weights, shared, residual, norm, eps, quantize=isinstance(gate_up, Fp8))

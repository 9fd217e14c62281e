"""The GEMMs of NVFP4 weights on Hopper: linear layers, and the experts of a mixture.

The weights are the first operand of the tensor cores, from registers: TMA loads codes to shared memory, and each thread
converts those that it multiplies. It converts both halves of a word at once, which takes about 2.5 instructions per
code. Scales and rows arrive by asynchronous copies, because the rows of an expert are gathered.

A sum adds the products of 16 inputs at a time, in ascending order, for every tile: all results are batch-invariant.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation, act_mul, interleave_group
from runtime.kernels.common import gl, gluon, hopper, supports_tma, triton
from runtime.kernels.fused_moe.moe_align import AlignedTokens
from runtime.kernels.linear import DEQUANTIZE_ROWS, GemmTile
from runtime.kernels.nvfp4 import BLOCK, Nvfp4, dequantize_nvfp4, nvfp4_tile_sizes, run_nvfp4_gemm

COLUMNS = 64, 128  # weight rows per program
MIN_STEPS = 2  # iterations of a program: Triton 3.6 fails to compile a loop of one
MAX_OFFSET = 2**31  # elements: the kernels compute offsets in 32 bits


@gluon.constexpr_function
def _convert(first_scale, float16):
    """Returns the PTX that converts a word of codes ($8) with scales in two bytes of another word ($9).

    Results $0 to $7 are the codes times their scale, of inputs 0, 1, 8, 9, 16, 17, 24 and 25 from the word's first one
    on. The scales of inputs 16 to 25 are those of the next byte. ``nvfp4._pack_codes`` has the places of the bits.

    A code is multiplied by 2^-126 (bfloat16) or 2^-14 (float16), because its magnitude becomes the lowest exponent bits
    and the highest mantissa bit. The exponent of a scale is increased accordingly, see ``nvfp4._pair_scales``.
    """
    scale, bias, kind = (128, "0x30003000", "f16x2") if float16 else (16, "0x75807580", "bf16x2")
    lines = [".reg .b32 s<2>, m, r;"]
    for n in range(2):
        lines += [f"prmt.b32 s{n}, $9, 0, 0x4{first_scale + n}4{first_scale + n};"]
        lines += [f"mad.lo.u32 s{n}, s{n}, {scale}, {bias};"]
    for n in range(4):
        if n < 3:
            lines += [f"shl.b32 r, $8, {3 * n};", "and.b32 r, r, 0x81C081C0;"]
        else:
            lines += ["shl.b32 r, $8, 1;", "and.b32 r, r, 0x80008000;"]
            lines += ["shr.u32 m, $8, 5;", "lop3.b32 r, m, 0x01000100, r, 0xEA;"]  # 0xEA: (a & b) | c
            lines += ["shr.u32 m, $8, 4;", "lop3.b32 r, m, 0x00C000C0, r, 0xEA;"]
        if float16:
            lines += ["and.b32 m, r, 0x01C001C0;", "shl.b32 m, m, 3;", "lop3.b32 r, r, 0x80008000, m, 0xEA;"]
        lines += [f"mul.rn.{kind} r, r, s{n // 2};", f"mov.b32 {{${2 * n}, ${2 * n + 1}}}, r;"]
    return "{" + " ".join(lines) + "}"


@gluon.constexpr_function
def _mma_layout(columns, rows, warps):
    """Returns the layout of accumulators [columns, rows]: warps split the columns, 16 each."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, rows, 16])


@gluon.constexpr_function
def _words(columns, blocks, warps):
    """Returns the layout of words of codes [columns, 8 * blocks].

    A thread has the words whose codes are its part of the first operand, see ``nvfp4._input_order``.
    """
    registers = [[0, 1]] + [[0, 8 << n] for n in range(blocks.bit_length() - 1)] + [[8, 0]]
    registers += [[16 * warps << n, 0] for n in range((columns // (16 * warps)).bit_length() - 1)]
    lanes, spread = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[16 << n, 0] for n in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, spread, [], [columns, 8 * blocks])


@gluon.constexpr_function
def _half_words(columns, blocks, warps):
    """Returns the layout of every second word, [columns, blocks, 4]."""
    registers = [[0, 1 << n, 0] for n in range(blocks.bit_length() - 1)] + [[8, 0, 0]]
    registers += [[16 * warps << n, 0, 0] for n in range((columns // (16 * warps)).bit_length() - 1)]
    lanes = [[0, 0, 1], [0, 0, 2], [1, 0, 0], [2, 0, 0], [4, 0, 0]]
    spread = [[16 << n, 0, 0] for n in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, spread, [], [columns, blocks, 4])


@gluon.jit
def _converted(codes, scales, FIRST: gl.constexpr, dtype: gl.constexpr):
    """Converts words [columns, blocks, 4]; returns [.., 2, 2, 2]: the next input, the 8th after, the 16th after."""
    a, b, c, d, e, f, g, h = gl.inline_asm_elementwise(
        _convert(FIRST, dtype == gl.float16), "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [codes, scales],
        dtype=(gl.int16, gl.int16, gl.int16, gl.int16, gl.int16, gl.int16, gl.int16, gl.int16), is_pure=True, pack=1,
    )  # fmt: skip
    return gl.join(gl.join(gl.join(a, b), gl.join(c, d)), gl.join(gl.join(e, f), gl.join(g, h)))


@gluon.jit
def _operand(codes, scales, mma: gl.constexpr, dtype: gl.constexpr, COLUMNS: gl.constexpr, BLOCKS: gl.constexpr):
    """Converts words [COLUMNS, 8 * BLOCKS], with a word of scales per block [COLUMNS, BLOCKS], to the first operand."""
    half: gl.constexpr = _half_words(COLUMNS, BLOCKS, gl.num_warps())
    first, second = gl.split(gl.reshape(codes, [COLUMNS, BLOCKS, 4, 2]))
    first = gl.convert_layout(first, half, assert_trivial=True)
    second = gl.convert_layout(second, half, assert_trivial=True)
    scales = gl.expand_dims(scales, 2)
    values = gl.join(_converted(first, scales, 0, dtype), _converted(second, scales, 2, dtype))
    # From (thread of a quad, next input, 8th, 16th, 32nd after) to the order of inputs.
    values = gl.permute(values, (0, 1, 6, 5, 4, 2, 3))
    values = gl.reshape(values, [COLUMNS, 64 * BLOCKS]).to(dtype, bitcast=True)
    return gl.convert_layout(values, gl.DotOperandLayout(0, mma, 2), assert_trivial=True)


@gluon.constexpr_function
def _copy_layout(columns, vector, warps):
    """Returns the layout in which rows of `columns` are copied or stored, a vector per thread."""
    along = min(32, columns // vector)
    return gl.BlockedLayout([1, vector], [32 // along, along], [warps, 1], [1, 0])


@gluon.jit
def _load(
    x_at, ok, codes_desc, scales_at, code_row, scale_stride, x_bufs, code_bufs, scale_bufs, full, stage, n,
    SIZE: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr,
):  # fmt: skip
    """Starts the loads of the n-th DEPTH inputs into a stage. A row that is not `ok` is undefined."""
    if n < SIZE // DEPTH:
        bar, blocks = full.index(stage), DEPTH // 64
        hopper.mbarrier.expect(bar, codes_desc.block_type.nbytes)
        hopper.tma.async_copy_global_to_shared(codes_desc, [code_row, n * (DEPTH // 8)], bar, code_bufs.index(stage))
        hopper.async_copy.async_copy_global_to_shared(scale_bufs.index(stage), scales_at + n * blocks * scale_stride)
        x_buf = x_bufs.index(stage).slice(0, ROWS, dim=0)
        hopper.async_copy.async_copy_global_to_shared(x_buf, x_at + n * DEPTH, mask=ok)
    hopper.async_copy.commit_group()


@gluon.jit
def _multiply(
    x_ptr, row, ok, codes_desc, scales_ptr, scale_stride, code_row, column, x_bufs, code_bufs, scale_bufs, full,
    SIZE: gl.constexpr, COLUMNS: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Returns float32 [COLUMNS, ROWS]: COLUMNS weight rows times the rows `row` of x [.., SIZE].

    Args:
        code_row: of all matrices; column: of one matrix.
        scales_ptr: of the matrix, [1 + SIZE / 64, scale_stride].
    """
    dtype: gl.constexpr = x_ptr.dtype.element_ty
    blocks: gl.constexpr = DEPTH // 64
    mma: gl.constexpr = _mma_layout(COLUMNS, ROWS, gl.num_warps())
    weight_row = column + gl.arange(0, COLUMNS, gl.SliceLayout(1, mma))
    row_scale = gl.load(scales_ptr + weight_row).to(gl.float32, bitcast=True)  # ahead of its use
    copy: gl.constexpr = _copy_layout(DEPTH, 8, gl.num_warps())
    x_at = x_ptr + (row[:, None] * SIZE + gl.arange(0, DEPTH, gl.SliceLayout(0, copy))[None, :])
    scale_copy: gl.constexpr = _copy_layout(COLUMNS, 4, gl.num_warps())
    block = 1 + gl.arange(0, blocks, gl.SliceLayout(1, scale_copy))
    scale_column = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, scale_copy))
    scales_at = scales_ptr + (block[:, None] * scale_stride + scale_column[None, :])
    for n in gl.static_range(STAGES - 1):
        _load(
            x_at, ok[:, None], codes_desc, scales_at, code_row, scale_stride, x_bufs, code_bufs, scale_bufs, full, n,
            n, SIZE, ROWS, DEPTH,
        )  # fmt: skip
    acc = gl.zeros([COLUMNS, ROWS], gl.float32, mma)
    stage, free, phase = 0, STAGES - 1, 0
    for n in range(SIZE // DEPTH):
        hopper.mbarrier.wait(full.index(stage), phase)
        hopper.async_copy.wait_group(STAGES - 2)
        # The copies of rows write in the generic proxy, and tensor cores read in the asynchronous one.
        hopper.fence_async_shared()
        _load(
            x_at, ok[:, None], codes_desc, scales_at, code_row, scale_stride, x_bufs, code_bufs, scale_bufs, full,
            free, n + STAGES - 1, SIZE, ROWS, DEPTH,
        )  # fmt: skip
        codes = code_bufs.index(stage).load(_words(COLUMNS, blocks, gl.num_warps()))
        scale_layout: gl.constexpr = gl.SliceLayout(2, _half_words(COLUMNS, blocks, gl.num_warps()))
        scales = scale_bufs.index(stage).permute((1, 0)).load(scale_layout)
        operand = _operand(codes, scales, mma, dtype, COLUMNS, blocks)
        x = x_bufs.index(stage).slice(0, ROWS, dim=0)
        acc = hopper.warpgroup_mma(operand, x.permute((1, 0)), acc)
        free = stage
        phase = gl.where(stage == STAGES - 1, phase ^ 1, phase)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
    power: gl.constexpr = 256.0 if dtype == gl.bfloat16 else 128.0  # see `_convert`
    return acc * (row_scale * power)[:, None]


@gluon.jit
def _make_buffers(
    x_ptr, codes_desc, COLUMNS: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Returns the stages of rows, codes and scales, and the barriers for which the arrival of codes counts."""
    dtype: gl.constexpr = x_ptr.dtype.element_ty
    x_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, DEPTH], dtype)
    x_bufs = gl.allocate_shared_memory(dtype, [STAGES, ROWS, DEPTH], x_layout)
    code_bufs = gl.allocate_shared_memory(gl.int32, [STAGES, COLUMNS, DEPTH // 8], codes_desc.layout)
    scale_layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    scale_bufs = gl.allocate_shared_memory(gl.int32, [STAGES, DEPTH // 64, COLUMNS], scale_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for n in gl.static_range(STAGES):
        hopper.mbarrier.init(full.index(n), count=1)
    return x_bufs, code_bufs, scale_bufs, full


@gluon.jit
def _store(
    value, out_ptr, target_ptr, first, end, first_column, WIDTH: gl.constexpr, COLUMNS: gl.constexpr,
    ROWS: gl.constexpr,
):  # fmt: skip
    """Stores value [COLUMNS, ROWS] to rows of `out_ptr` [.., WIDTH], from a column on.

    Row n is `first` + n, or the one that `target_ptr` has there. It is stored if `first` + n is below `end`.
    """
    stored: gl.constexpr = _copy_layout(COLUMNS, 8, gl.num_warps())
    value = gl.convert_layout(gl.permute(value.to(out_ptr.dtype.element_ty), (1, 0)), stored)
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, stored))
    target = row
    if target_ptr is not None:
        target = gl.load(target_ptr + row, mask=row < end, other=0)
    column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, stored))
    gl.store(out_ptr + (target[:, None] * WIDTH + column[None, :]), value, mask=(row < end)[:, None])


@gluon.jit
def _expert_tile(
    x_ptr, codes_desc, scales_ptr, out_ptr, order_ptr, first, end, expert, column_tile, x_bufs, code_bufs, scale_bufs,
    full,
    TOP_K: gl.constexpr, SIZE: gl.constexpr, OUTPUTS: gl.constexpr, COLUMNS: gl.constexpr, ROWS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, INTERLEAVE: gl.constexpr, GELU: gl.constexpr,
):  # fmt: skip
    """Computes COLUMNS weight rows of at most ROWS pairs, see `_experts`."""
    pos = first + gl.arange(0, ROWS, gl.SliceLayout(1, _copy_layout(DEPTH, 8, gl.num_warps())))
    ok = pos < end
    row = pos
    if INTERLEAVE > 0:
        row = gl.load(order_ptr + pos, mask=ok, other=0) // TOP_K
    acc = _multiply(
        x_ptr, row, ok, codes_desc, scales_ptr + expert * (OUTPUTS * (1 + SIZE // 64)), OUTPUTS,
        expert * OUTPUTS + column_tile * COLUMNS, column_tile * COLUMNS, x_bufs, code_bufs, scale_bufs, full, SIZE,
        COLUMNS, ROWS, DEPTH, STAGES,
    )  # fmt: skip
    if INTERLEAVE > 0:
        columns: gl.constexpr = COLUMNS // 2
        width: gl.constexpr = OUTPUTS // 2
        runs = gl.permute(gl.reshape(acc, [columns // INTERLEAVE, 2, INTERLEAVE, ROWS]), (0, 2, 3, 1))
        gate, up = gl.split(runs)
        value = gl.reshape(act_mul(gate, up, GELU), [columns, ROWS])
    else:
        columns: gl.constexpr = COLUMNS
        width: gl.constexpr = OUTPUTS
        value = acc
    target_ptr = order_ptr if INTERLEAVE == 0 else None
    _store(value, out_ptr, target_ptr, first, end, column_tile * columns, width, columns, ROWS)


@gluon.jit(do_not_specialize=["max_tiles"])  # avoids a recompilation per value
def _experts(
    x_ptr, codes_desc, scales_ptr, out_ptr, order_ptr, tiles_ptr, max_tiles,
    TOP_K: gl.constexpr, SIZE: gl.constexpr, OUTPUTS: gl.constexpr, COLUMNS: gl.constexpr, ROWS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, INTERLEAVE: gl.constexpr, GELU: gl.constexpr,
):  # fmt: skip
    """Computes a tile of one expert's pairs and COLUMNS of its weight rows per program.

    INTERLEAVE: rows per group of gate and of up rows. The gate_up GEMM: x has the rows of the batch, and act(gate) * up
    is stored, sorted by expert. 0: the down GEMM, whose x is sorted by expert. Results are stored at their pairs.
    """
    column_tile, tile = gl.program_id(0), gl.program_id(1)
    expert = gl.load(tiles_ptr + tile)
    first, end = gl.load(tiles_ptr + max_tiles + tile), gl.load(tiles_ptr + 2 * max_tiles + tile)
    if expert < 0:
        return
    x_bufs, code_bufs, scale_bufs, full = _make_buffers(x_ptr, codes_desc, COLUMNS, ROWS, DEPTH, STAGES)
    if ROWS == 16 or end - first > ROWS // 2:
        _expert_tile(
            x_ptr, codes_desc, scales_ptr, out_ptr, order_ptr, first, end, expert, column_tile, x_bufs, code_bufs,
            scale_bufs, full, TOP_K, SIZE, OUTPUTS, COLUMNS, ROWS, DEPTH, STAGES, INTERLEAVE, GELU,
        )  # fmt: skip
    elif ROWS == 32 or end - first > ROWS // 4:
        _expert_tile(
            x_ptr, codes_desc, scales_ptr, out_ptr, order_ptr, first, end, expert, column_tile, x_bufs, code_bufs,
            scale_bufs, full, TOP_K, SIZE, OUTPUTS, COLUMNS, ROWS // 2, DEPTH, STAGES, INTERLEAVE, GELU,
        )  # fmt: skip
    else:
        _expert_tile(
            x_ptr, codes_desc, scales_ptr, out_ptr, order_ptr, first, end, expert, column_tile, x_bufs, code_bufs,
            scale_bufs, full, TOP_K, SIZE, OUTPUTS, COLUMNS, ROWS // 4, DEPTH, STAGES, INTERLEAVE, GELU,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["rows", "scale_stride"])
def _linear(
    x_ptr, codes_desc, scales_ptr, scale_stride, bias_ptr, out_ptr, rows,
    SIZE: gl.constexpr, OUTPUTS: gl.constexpr, COLUMNS: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Computes COLUMNS outputs of ROWS rows per program. bias_ptr: None without a bias."""
    first_column, first_row = gl.program_id(0) * COLUMNS, gl.program_id(1) * ROWS
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, _copy_layout(DEPTH, 8, gl.num_warps())))
    x_bufs, code_bufs, scale_bufs, full = _make_buffers(x_ptr, codes_desc, COLUMNS, ROWS, DEPTH, STAGES)
    acc = _multiply(
        x_ptr, row, row < rows, codes_desc, scales_ptr, scale_stride, first_column, first_column, x_bufs, code_bufs,
        scale_bufs, full, SIZE, COLUMNS, ROWS, DEPTH, STAGES,
    )  # fmt: skip
    if bias_ptr is not None:
        column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(1, acc.type.layout))
        acc += gl.load(bias_ptr + column).to(gl.float32)[:, None]
    _store(acc, out_ptr, None, first_row, rows, first_column, OUTPUTS, COLUMNS, ROWS)


def supports_nvfp4_gemm(x: torch.Tensor, *weights: Nvfp4, rows: int) -> bool:
    """Whether the kernels multiply `rows` rows of x's dtype and device by these weights."""
    return (
        x.is_cuda
        and x.element_size() == 2
        and torch.cuda.get_device_capability(x.device) == (9, 0)
        and all(
            weight.size % BLOCK == 0
            and weight.size >= MIN_STEPS * BLOCK
            and weight.shape[-2] % min(COLUMNS) == 0
            and supports_tma(weight.values.flatten(0, -2))
            and max(rows * max(weight.shape[-2:]), weight.scales.numel()) < MAX_OFFSET
            for weight in weights
        )
    )


def select_tile(rows: int, size: int, outputs: int) -> GemmTile:
    """Selects the tile of a GEMM with at most `rows` rows per program, of `size` inputs and this number of outputs."""
    deep = 128 if size % 128 == 0 and size >= MIN_STEPS * 128 else 64
    columns = COLUMNS[1] if outputs % COLUMNS[1] == 0 else COLUMNS[0]
    if rows <= 32:
        return GemmTile(rows, columns, deep, 4 if deep == 128 else 6)
    if rows <= 64 and size >= 1024:
        return GemmTile(rows, columns, deep, 3, columns // 16)
    return GemmTile(rows, columns, 64, 4, columns // 16)


def select_linear_tile(rows: int, size: int, outputs: int) -> GemmTile:
    """Selects the tile of a linear layer.

    Up to 512 rows there is about a program per SM or less. Narrow tiles make more of them. With few rows, deep tiles
    make fewer iterations, each of which waits for its loads.
    """
    if rows > 512:
        return select_tile(128, size, outputs)
    height = min(64, max(16, triton.next_power_of_2(rows)))
    if rows <= 64 and size % 256 == 0 and size >= MIN_STEPS * 256:
        return GemmTile(height, COLUMNS[0], 256, 3)
    return select_tile(height, size, outputs)._replace(columns=COLUMNS[0], warps=4)


def rows_per_tile(pairs: int, experts: int) -> int:
    """Returns the rows of tiles for an average of ``pairs / experts``."""
    average = pairs / experts
    return next(rows for most, rows in ((2, 16), (20, 32), (56, 64), (math.inf, 128)) if average <= most)


def _describe(weight: Nvfp4, tile: GemmTile) -> Any:
    """Returns a TMA descriptor of the words of codes."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    codes, block = weight.values.view(torch.int32).flatten(0, -2), [tile.columns, tile.depth // 8]
    return TensorDescriptor.from_tensor(codes, block, gl.NVMMASharedLayout.get_default_for(block, gl.int32))


def run_nvfp4_experts(
    x: torch.Tensor, weights: Nvfp4, out: torch.Tensor, aligned: AlignedTokens, top_k: int,
    gated: Activation | None = None, tile: GemmTile | None = None,
) -> None:  # fmt: skip
    """Runs one GEMM of the experts, with tiles of ``aligned.rows``.

    Args:
        x, out: with `gated`, rows of the batch [rows, hidden] and act(gate) * up [pairs, width], sorted by expert.
            Without, that result and [pairs, hidden] in the order of rows and choices.
        tile: overrides `select_tile`.
    """
    _, outputs, size = weights.shape
    tile = tile or select_tile(aligned.rows, size, outputs)
    max_tiles = aligned.tiles.shape[1]
    _experts[(outputs // tile.columns, max_tiles)](
        x, _describe(weights, tile), weights.scales, out, aligned.order, aligned.tiles, max_tiles, TOP_K=top_k,
        SIZE=size, OUTPUTS=outputs, COLUMNS=tile.columns, ROWS=tile.rows, DEPTH=tile.depth, STAGES=tile.stages,
        INTERLEAVE=interleave_group(outputs // 2) if gated else 0, GELU=gated == "gelu_tanh", num_warps=tile.warps,
    )  # fmt: skip


def run_linear(x: torch.Tensor, weight: Nvfp4, bias: torch.Tensor | None, tile: GemmTile) -> torch.Tensor:
    """Returns x [rows, inputs] @ weight^T + bias in x's dtype, accumulated in float32."""
    rows, (outputs, size) = len(x), weight.shape
    out = x.new_empty(rows, outputs)
    _linear[(outputs // tile.columns, triton.cdiv(rows, tile.rows))](
        x, _describe(weight, tile), weight.scales, weight.scales.stride(-1), bias, out, rows, SIZE=size,
        OUTPUTS=outputs, COLUMNS=tile.columns, ROWS=tile.rows, DEPTH=tile.depth, STAGES=tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip
    return out


def nvfp4_linear(
    x: torch.Tensor, weight: Nvfp4, bias: torch.Tensor | None, *, batch_invariant: bool = False
) -> torch.Tensor:
    """Computes `quantized_linear_torch` for contiguous [rows, inputs], accumulated in float32.

    Deterministic, no host sync.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows.
    """
    rows, (outputs, size) = len(x), weight.shape
    if not batch_invariant and rows >= DEQUANTIZE_ROWS and x.element_size() == 2:
        return F.linear(x, dequantize_nvfp4(weight, x.dtype), bias)
    if supports_nvfp4_gemm(x, weight, rows=rows):
        return run_linear(x, weight, bias, select_linear_tile(rows, size, outputs))
    return run_nvfp4_gemm(x, weight, bias, nvfp4_tile_sizes(rows, x.element_size(), batch_invariant=batch_invariant))

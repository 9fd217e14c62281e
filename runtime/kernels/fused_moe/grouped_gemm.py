"""The fp8 GEMMs of a mixture of experts on Hopper, with warps that load and warps that multiply.

Both kernels are persistent: their programs take work items from a counter. Loading warps fill a ring of stages in
shared memory and run ahead of the multiplying ones, so the operands of the next item arrive during the epilogue of the
current one. TMA loads weights and the rows of down; the rows of gate_up are gathered by asynchronous copies.

* gate_up quantizes act(gate) * up in its epilogue, with a scale per row and half a tile's weight rows. So no kernel has
  to read a full row for it.
* down multiplies each group of inputs that shares a scale separately, and adds the scaled products in float32. Two
  programs share an SM: one multiplies while the other stores.

Pairs are the first operand, because a thread then needs the scales of two of them only. The fp8 tensor cores take both
operands with the inputs of a GEMM contiguous, which is how rows and weights are stored. `fused_moe.moe_reference`
defines the results. The kernels of ``fused_moe.py`` run on other devices, and with other formats and shapes.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.kernels.activation import INTERLEAVE, Activation, act_mul
from runtime.kernels.common import gl, gluon, hopper, multiprocessors, supports_tma, triton
from runtime.kernels.fused_moe.moe_align import AlignedTokens
from runtime.kernels.fused_moe.tile_config import GroupedTile
from runtime.kernels.quantized_tensor import FP8_MAX, MIN_SCALE, Fp8, GroupQuantized

LOAD_WARPS = 4  # of gate_up. Down has one, but registers are given per warpgroup, which is four.
ITEMS_AHEAD = 4  # work items by which loading warps may be ahead of multiplying ones
MAX_OFFSET = 2**31  # elements: the kernels compute offsets in 32 bits


@gluon.constexpr_function
def _flat_layout(warps):
    return gl.BlockedLayout([1], [32], [warps], [0])


@gluon.jit
def _make_barriers(COUNT: gl.constexpr, FULL_ARRIVALS: gl.constexpr):
    """Returns barriers of full and of empty entries of a ring. The phase before the first counts as complete."""
    full = gl.allocate_shared_memory(gl.int64, [COUNT, 1], hopper.mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [COUNT, 1], hopper.mbarrier.MBarrierLayout())
    for n in gl.static_range(COUNT):
        hopper.mbarrier.init(full.index(n), count=FULL_ARRIVALS)
        hopper.mbarrier.init(empty.index(n), count=1)
    return full, empty


@gluon.jit
def _make_items(ITEMS_AHEAD: gl.constexpr):
    """Returns the ring in which loading warps pass the index of the next work item to multiplying ones."""
    indices = gl.allocate_shared_memory(gl.int32, [ITEMS_AHEAD, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full, empty = _make_barriers(ITEMS_AHEAD, 1)
    return indices, full, empty


@gluon.jit
def _start_next(counter_ptr):
    """Requests the next work item. The result arrives later: `_next` waits for it."""
    thread = gl.arange(0, 32 * gl.num_warps(), _flat_layout(gl.num_warps()))
    return gl.atomic_add(counter_ptr + thread * 0, gl.full_like(thread, 1), mask=thread == 0, sem="relaxed")


@gluon.jit
def _next(ticket, n, indices, full, empty, ITEMS_AHEAD: gl.constexpr):
    """Returns the index of the next work item, the n-th after the first, and passes it on."""
    thread = gl.arange(0, 32 * gl.num_warps(), _flat_layout(gl.num_warps()))
    item = gl.num_programs(0) + gl.sum(gl.where(thread == 0, ticket, 0), 0)
    entry = n % ITEMS_AHEAD
    hopper.mbarrier.wait(empty.index(entry), (n // ITEMS_AHEAD & 1) ^ 1)
    indices.index(entry).store(gl.full([1], item, gl.int32, _flat_layout(gl.num_warps())))
    hopper.mbarrier.arrive(full.index(entry), count=1)
    return item


@gluon.jit
def _receive(n, indices, full, empty, ITEMS_AHEAD: gl.constexpr):
    """Returns what the n-th call of `_next` returned to the loading warps."""
    entry = n % ITEMS_AHEAD
    hopper.mbarrier.wait(full.index(entry), n // ITEMS_AHEAD & 1)
    item = gl.max(indices.index(entry).load(_flat_layout(gl.num_warps())), 0)
    hopper.mbarrier.arrive(empty.index(entry), count=1)
    return item


@gluon.jit
def _add(x, y):
    return x + y


@gluon.jit
def _list_tiles(tiles_ptr, list_ptr, max_tiles, TILES_P2: gl.constexpr, LAST_FIRST: gl.constexpr):
    """Stores the indices of the tiles in use, without gaps, and returns their number.

    Every program stores the same values, so that it need not wait for another one.
    """
    layout: gl.constexpr = _flat_layout(gl.num_warps())
    index = gl.arange(0, TILES_P2, layout)
    in_use = (gl.load(tiles_ptr + index, mask=index < max_tiles, other=-1) >= 0).to(gl.int32)
    rank = gl.associative_scan(in_use, 0, _add) - 1
    count = gl.sum(in_use, 0)
    if LAST_FIRST:
        rank = count - 1 - rank
    gl.store(list_ptr + rank, index, mask=in_use > 0)
    gl.thread_barrier()
    return count


@gluon.jit
def _tile_info(tiles_ptr, list_ptr, max_tiles, n):
    """Returns the expert, the first position and the end of the expert's positions of the n-th tile in use."""
    tile = gl.load(list_ptr + n)
    return gl.load(tiles_ptr + tile), gl.load(tiles_ptr + max_tiles + tile), gl.load(tiles_ptr + 2 * max_tiles + tile)


@gluon.constexpr_function
def _mma_layout(pairs, columns, warps):
    """Returns the layout of accumulators [pairs, columns]: warps split the pairs, 16 each, then the columns."""
    along = min(warps, pairs // 16)
    return gl.NVMMADistributedLayout([3, 0], [along, warps // along], [16, columns * along // warps, 32])


@gluon.constexpr_function
def _store_layout(columns, warps, bits):
    """Returns the layout in which rows of `columns` numbers are stored, 16 bytes per thread."""
    along = min(32, columns * bits // 128)
    return gl.BlockedLayout([1, 128 // bits], [32 // along, along], [warps, 1], [1, 0])


@gluon.jit
def _load_gate_up(
    x_ptr, w_desc, order_ptr, tiles_ptr, list_ptr, counter_ptr, num_tiles, max_tiles, w_bufs, x_bufs, full, empty,
    indices, item_full, item_empty,
    TOP_K: gl.constexpr, HIDDEN: gl.constexpr, WIDTH: gl.constexpr, PAIRS: gl.constexpr, ROWS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, ITEMS_AHEAD: gl.constexpr,
):  # fmt: skip
    """Loads [ROWS, DEPTH] of weights and [PAIRS, DEPTH] of gathered rows per stage."""
    vec: gl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth  # 16 bytes
    along: gl.constexpr = DEPTH // vec
    layout: gl.constexpr = gl.BlockedLayout([1, vec], [32 // along, along], [gl.num_warps(), 1], [1, 0])
    column_tiles: gl.constexpr = 2 * WIDTH // ROWS
    depth = gl.arange(0, DEPTH, gl.SliceLayout(0, layout))
    item, n, step = gl.program_id(0), 0, 0
    while item < num_tiles * column_tiles:
        ticket = _start_next(counter_ptr)
        expert, first, end = _tile_info(tiles_ptr, list_ptr, max_tiles, item // column_tiles)
        pos = first + gl.arange(0, PAIRS, gl.SliceLayout(1, layout))
        ok = pos < end
        row = gl.load(order_ptr + pos, mask=ok, other=0) // TOP_K
        at = x_ptr + (row[:, None] * HIDDEN + depth[None, :])
        weight_row = expert * (2 * WIDTH) + item % column_tiles * ROWS
        for start in range(0, HIDDEN, DEPTH):
            stage = step % STAGES
            bar = full.index(stage)
            hopper.mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
            hopper.mbarrier.expect(bar, w_desc.block_type.nbytes)
            hopper.tma.async_copy_global_to_shared(w_desc, [weight_row, start], bar, w_bufs.index(stage))
            # A row past `end` is not copied. Its results are undefined and not stored.
            hopper.async_copy.async_copy_global_to_shared(x_bufs.index(stage), at + start, mask=ok[:, None])
            # Every loading thread arrives once its own copies have landed; none waits for them.
            hopper.async_copy.mbarrier_arrive(bar, increment_count=False)
            step += 1
        item = _next(ticket, n, indices, item_full, item_empty, ITEMS_AHEAD)
        n += 1


@gluon.jit
def _gate_up_tile(
    x_scales_ptr, w_scales_ptr, out_ptr, out_scales_ptr, scale_stride, order_ptr, first, end, expert, column_tile,
    w_bufs, x_bufs, full, empty, first_step,
    TOP_K: gl.constexpr, HIDDEN: gl.constexpr, WIDTH: gl.constexpr, PAIRS: gl.constexpr, ROWS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, GELU: gl.constexpr, INTERLEAVE: gl.constexpr, FP8_MAX: gl.constexpr,
    MIN_SCALE: gl.constexpr,
):  # fmt: skip
    """Multiplies the first PAIRS pairs of a tile by ROWS weight rows, and stores act(gate) * up."""
    mma: gl.constexpr = _mma_layout(PAIRS, ROWS, gl.num_warps())
    columns: gl.constexpr = ROWS // 2
    pos = first + gl.arange(0, PAIRS, gl.SliceLayout(1, mma))
    # Read ahead of its use.
    x_scale = gl.load(x_scales_ptr + gl.load(order_ptr + pos, mask=pos < end, other=0) // TOP_K)
    acc = gl.zeros([PAIRS, ROWS], gl.float32, mma)
    for n in range(HIDDEN // DEPTH):
        step = first_step + n
        stage = step % STAGES
        hopper.mbarrier.wait(full.index(stage), step // STAGES & 1)
        # The copies of gathered rows write in the generic proxy, and tensor cores read in the asynchronous one.
        hopper.fence_async_shared()
        x, w = x_bufs.index(stage).slice(0, PAIRS, dim=0), w_bufs.index(stage).permute((1, 0))
        acc = hopper.warpgroup_mma(x, w, acc, is_async=True)
        # One multiplication stays in flight. The one before is complete, so its stage is free.
        acc = hopper.warpgroup_mma_wait(1, deps=(acc,))
        hopper.mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=n > 0)
    acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    hopper.mbarrier.arrive(empty.index((first_step + HIDDEN // DEPTH - 1) % STAGES), count=1)
    weight_row = expert * (2 * WIDTH) + column_tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, mma))
    acc = acc * gl.load(w_scales_ptr + weight_row)[None, :] * x_scale[:, None]
    # Columns c and c + 8 of an accumulator are in the same thread, so a gate and its up value need no exchange.
    gate, up = gl.split(gl.permute(gl.reshape(acc, [PAIRS, columns // INTERLEAVE, 2, INTERLEAVE]), (0, 1, 3, 2)))
    value = gl.reshape(act_mul(gate, up, GELU), [PAIRS, columns])
    stored: gl.constexpr = _store_layout(columns, gl.num_warps(), 8)
    pos = first + gl.arange(0, PAIRS, gl.SliceLayout(1, stored))
    scale = gl.maximum(gl.max(gl.abs(value), 1) / FP8_MAX, MIN_SCALE)
    value = value * (1.0 / scale)[:, None]
    scale = gl.convert_layout(scale, gl.SliceLayout(1, stored))
    gl.store(out_scales_ptr + column_tile * scale_stride + pos, scale, mask=pos < end)
    value = gl.convert_layout(value.to(out_ptr.dtype.element_ty), stored)
    column = column_tile * columns + gl.arange(0, columns, gl.SliceLayout(0, stored))
    gl.store(out_ptr + (pos[:, None] * WIDTH + column[None, :]), value, mask=(pos < end)[:, None])


@gluon.jit
def _multiply_gate_up(
    x_scales_ptr, w_scales_ptr, out_ptr, out_scales_ptr, scale_stride, order_ptr, tiles_ptr, list_ptr, num_tiles,
    max_tiles, w_bufs, x_bufs, full, empty, indices, item_full, item_empty,
    TOP_K: gl.constexpr, HIDDEN: gl.constexpr, WIDTH: gl.constexpr, PAIRS: gl.constexpr, ROWS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, ITEMS_AHEAD: gl.constexpr, GELU: gl.constexpr,
    INTERLEAVE: gl.constexpr, FP8_MAX: gl.constexpr, MIN_SCALE: gl.constexpr,
):  # fmt: skip
    column_tiles: gl.constexpr = 2 * WIDTH // ROWS
    item, n = gl.program_id(0), 0
    while item < num_tiles * column_tiles:
        column_tile, step = item % column_tiles, n * (HIDDEN // DEPTH)
        expert, first, end = _tile_info(tiles_ptr, list_ptr, max_tiles, item // column_tiles)
        if PAIRS >= 128 and end - first <= PAIRS // 2:
            _gate_up_tile(
                x_scales_ptr, w_scales_ptr, out_ptr, out_scales_ptr, scale_stride, order_ptr, first, end, expert,
                column_tile, w_bufs, x_bufs, full, empty, step, TOP_K, HIDDEN, WIDTH, PAIRS // 2, ROWS, DEPTH, STAGES,
                GELU, INTERLEAVE, FP8_MAX, MIN_SCALE,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_scales_ptr, w_scales_ptr, out_ptr, out_scales_ptr, scale_stride, order_ptr, first, end, expert,
                column_tile, w_bufs, x_bufs, full, empty, step, TOP_K, HIDDEN, WIDTH, PAIRS, ROWS, DEPTH, STAGES, GELU,
                INTERLEAVE, FP8_MAX, MIN_SCALE,
            )  # fmt: skip
        item = _receive(n, indices, item_full, item_empty, ITEMS_AHEAD)
        n += 1


@gluon.jit(do_not_specialize=["scale_stride", "max_tiles"])  # avoids a recompilation per value
def _grouped_gate_up(
    x_ptr, x_scales_ptr, w_desc, w_scales_ptr, out_ptr, out_scales_ptr, scale_stride, order_ptr, tiles_ptr, list_ptr,
    counter_ptr, max_tiles,
    TOP_K: gl.constexpr, HIDDEN: gl.constexpr, WIDTH: gl.constexpr, TILES_P2: gl.constexpr, PAIRS: gl.constexpr,
    ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, ITEMS_AHEAD: gl.constexpr, GELU: gl.constexpr,
    INTERLEAVE: gl.constexpr, FP8_MAX: gl.constexpr, MIN_SCALE: gl.constexpr, LOAD_WARPS: gl.constexpr,
    LOAD_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Computes act(gate) * up of all pairs, sorted by expert. An item is a tile of pairs times ROWS weight rows.

    Args:
        out_scales_ptr: [column tiles, scale_stride].
        list_ptr: int32 [max_tiles], written.
        counter_ptr: int32, 0 at the start: how many items programs have taken after their first.
    """
    x_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PAIRS, DEPTH], w_desc.dtype)
    w_bufs = gl.allocate_shared_memory(w_desc.dtype, [STAGES, ROWS, DEPTH], w_desc.layout)
    x_bufs = gl.allocate_shared_memory(w_desc.dtype, [STAGES, PAIRS, DEPTH], x_layout)
    full, empty = _make_barriers(STAGES, 1 + 32 * LOAD_WARPS)  # `expect`, and each loading thread
    indices, item_full, item_empty = _make_items(ITEMS_AHEAD)
    # A shared expert is the last one and has the most tiles. Its items begin first, because they take longest.
    num_tiles = _list_tiles(tiles_ptr, list_ptr, max_tiles, TILES_P2, True)
    gl.warp_specialize([
        (_multiply_gate_up, (
            x_scales_ptr, w_scales_ptr, out_ptr, out_scales_ptr, scale_stride, order_ptr, tiles_ptr, list_ptr,
            num_tiles, max_tiles, w_bufs, x_bufs, full, empty, indices, item_full, item_empty, TOP_K, HIDDEN, WIDTH,
            PAIRS, ROWS, DEPTH, STAGES, ITEMS_AHEAD, GELU, INTERLEAVE, FP8_MAX, MIN_SCALE)),
        (_load_gate_up, (
            x_ptr, w_desc, order_ptr, tiles_ptr, list_ptr, counter_ptr, num_tiles, max_tiles, w_bufs, x_bufs, full,
            empty, indices, item_full, item_empty, TOP_K, HIDDEN, WIDTH, PAIRS, ROWS, DEPTH, STAGES, ITEMS_AHEAD)),
    ], [LOAD_WARPS], [LOAD_REGISTERS])  # fmt: skip


@gluon.jit
def _load_down(
    h_desc, w_desc, tiles_ptr, list_ptr, counter_ptr, num_tiles, max_tiles, w_bufs, h_bufs, full, empty, indices,
    item_full, item_empty,
    HIDDEN: gl.constexpr, WIDTH: gl.constexpr, SPLITS: gl.constexpr, PAIRS: gl.constexpr, COLUMNS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, ITEMS_AHEAD: gl.constexpr,
):  # fmt: skip
    """Loads [COLUMNS, DEPTH] of weights and [PAIRS, DEPTH] of inner rows per stage."""
    column_tiles: gl.constexpr = HIDDEN // COLUMNS
    item, n, step = gl.program_id(0), 0, 0
    while item < num_tiles * SPLITS * column_tiles:
        ticket = _start_next(counter_ptr)
        part = item // column_tiles
        expert, first, end = _tile_info(tiles_ptr, list_ptr, max_tiles, part // SPLITS)
        first += part % SPLITS * PAIRS
        if first < end:
            weight_row = expert * HIDDEN + item % column_tiles * COLUMNS
            for start in range(0, WIDTH, DEPTH):
                stage = step % STAGES
                bar = full.index(stage)
                hopper.mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
                hopper.mbarrier.expect(bar, w_desc.block_type.nbytes + h_desc.block_type.nbytes)
                hopper.tma.async_copy_global_to_shared(w_desc, [weight_row, start], bar, w_bufs.index(stage))
                hopper.tma.async_copy_global_to_shared(h_desc, [first, start], bar, h_bufs.index(stage))
                step += 1
        item = _next(ticket, n, indices, item_full, item_empty, ITEMS_AHEAD)
        n += 1


@gluon.jit
def _down_tile(
    h_scales_ptr, scale_stride, w_scales_ptr, pairs_ptr, order_ptr, first, end, expert, column_tile, w_bufs, h_bufs,
    full, empty, first_step,
    HIDDEN: gl.constexpr, WIDTH: gl.constexpr, PAIRS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Multiplies PAIRS pairs by COLUMNS weight rows. Each result is stored at the index of its pair."""
    mma: gl.constexpr = _mma_layout(PAIRS, COLUMNS, gl.num_warps())
    steps: gl.constexpr = WIDTH // DEPTH
    # Scales are read ahead of their use. Those of rows are padded, because a mask would cost registers.
    scales_at = h_scales_ptr + first + gl.arange(0, PAIRS, gl.SliceLayout(1, mma))
    following = gl.load(scales_at)
    weight_row = expert * HIDDEN + column_tile * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, mma))
    w_scale = gl.load(w_scales_ptr + weight_row)
    acc = gl.zeros([PAIRS, COLUMNS], gl.float32, mma)
    for n in range(steps):
        stage = (first_step + n) % STAGES
        hopper.mbarrier.wait(full.index(stage), (first_step + n) // STAGES & 1)
        h, w = h_bufs.index(stage), w_bufs.index(stage).permute((1, 0))
        scale, following = following, gl.load(scales_at + gl.minimum(n + 1, steps - 1) * scale_stride)
        part = hopper.warpgroup_mma(h, w, gl.zeros([PAIRS, COLUMNS], gl.float32, mma), use_acc=False)
        hopper.mbarrier.arrive(empty.index(stage), count=1)
        acc += part * scale[:, None]
    acc = acc * w_scale[None, :]
    stored: gl.constexpr = _store_layout(COLUMNS, gl.num_warps(), 16)
    value = gl.convert_layout(acc.to(pairs_ptr.dtype.element_ty), stored)
    pos = first + gl.arange(0, PAIRS, gl.SliceLayout(1, stored))
    pair = gl.load(order_ptr + pos, mask=pos < end, other=0)
    column = column_tile * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, stored))
    gl.store(pairs_ptr + (pair[:, None] * HIDDEN + column[None, :]), value, mask=(pos < end)[:, None])


@gluon.jit
def _multiply_down(
    h_scales_ptr, scale_stride, w_scales_ptr, pairs_ptr, order_ptr, tiles_ptr, list_ptr, num_tiles, max_tiles, w_bufs,
    h_bufs, full, empty, indices, item_full, item_empty,
    HIDDEN: gl.constexpr, WIDTH: gl.constexpr, SPLITS: gl.constexpr, PAIRS: gl.constexpr, COLUMNS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, ITEMS_AHEAD: gl.constexpr,
):  # fmt: skip
    column_tiles: gl.constexpr = HIDDEN // COLUMNS
    item, n, step = gl.program_id(0), 0, 0
    while item < num_tiles * SPLITS * column_tiles:
        part = item // column_tiles
        expert, first, end = _tile_info(tiles_ptr, list_ptr, max_tiles, part // SPLITS)
        first += part % SPLITS * PAIRS
        if first < end:
            _down_tile(
                h_scales_ptr, scale_stride, w_scales_ptr, pairs_ptr, order_ptr, first, end, expert, item % column_tiles,
                w_bufs, h_bufs, full, empty, step, HIDDEN, WIDTH, PAIRS, COLUMNS, DEPTH, STAGES,
            )  # fmt: skip
            step += WIDTH // DEPTH
        item = _receive(n, indices, item_full, item_empty, ITEMS_AHEAD)
        n += 1


@gluon.jit(do_not_specialize=["scale_stride", "max_tiles"])
def _grouped_down(
    h_desc, h_scales_ptr, scale_stride, w_desc, w_scales_ptr, pairs_ptr, order_ptr, tiles_ptr, list_ptr, counter_ptr,
    max_tiles,
    HIDDEN: gl.constexpr, WIDTH: gl.constexpr, TILES_P2: gl.constexpr, SPLITS: gl.constexpr, PAIRS: gl.constexpr,
    COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, ITEMS_AHEAD: gl.constexpr,
    LOAD_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Multiplies inner rows, which are sorted by expert, by the weights of their experts.

    An item is PAIRS of a tile, of SPLITS such parts, times COLUMNS of the hidden size. See `_grouped_gate_up`.
    """
    w_bufs = gl.allocate_shared_memory(w_desc.dtype, [STAGES, COLUMNS, DEPTH], w_desc.layout)
    h_bufs = gl.allocate_shared_memory(h_desc.dtype, [STAGES, PAIRS, DEPTH], h_desc.layout)
    full, empty = _make_barriers(STAGES, 1)
    indices, item_full, item_empty = _make_items(ITEMS_AHEAD)
    num_tiles = _list_tiles(tiles_ptr, list_ptr, max_tiles, TILES_P2, False)
    gl.warp_specialize([
        (_multiply_down, (
            h_scales_ptr, scale_stride, w_scales_ptr, pairs_ptr, order_ptr, tiles_ptr, list_ptr, num_tiles, max_tiles,
            w_bufs, h_bufs, full, empty, indices, item_full, item_empty, HIDDEN, WIDTH, SPLITS, PAIRS, COLUMNS, DEPTH,
            STAGES, ITEMS_AHEAD)),
        (_load_down, (
            h_desc, w_desc, tiles_ptr, list_ptr, counter_ptr, num_tiles, max_tiles, w_bufs, h_bufs, full, empty,
            indices, item_full, item_empty, HIDDEN, WIDTH, SPLITS, PAIRS, COLUMNS, DEPTH, STAGES, ITEMS_AHEAD)),
    ], [1], [LOAD_REGISTERS])  # fmt: skip


def _describe(codes: torch.Tensor, rows: int, columns: int) -> Any:
    """Returns a TMA descriptor of e4m3 tiles [rows, columns] with the swizzle that tensor cores read."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    block = [rows, columns]
    return TensorDescriptor.from_tensor(codes, block, gl.NVMMASharedLayout.get_default_for(block, gl.float8e4nv))


def max_registers(warps: int, programs: int) -> int:
    """Returns the registers per thread with which `programs` programs of these warps fill the registers of an SM."""
    return 65536 // (32 * warps * programs) // 8 * 8


def supports_grouped(x: torch.Tensor, gate_up: Fp8, down: Fp8, pairs: int) -> bool:
    """Whether the kernels compute `pairs` token-expert pairs of x [rows, hidden] with these weights.

    Tiles must also divide the matrices, see ``tile_config.GROUPED``.
    """
    hidden, width = down.shape[1:]
    return (
        x.is_cuda
        and torch.cuda.get_device_capability(x.device) == (9, 0)
        and x.element_size() == 2
        and all(supports_tma(weights.values.flatten(0, 1)) for weights in (gate_up, down))
        and max(len(x) * hidden, pairs * hidden, pairs * width) < MAX_OFFSET
    )


def run_grouped_gate_up(
    x: Fp8, gate_up: Fp8, aligned: AlignedTokens, top_k: int, tile: GroupedTile, activation: Activation
) -> GroupQuantized:
    """Returns act(gate) * up of x [rows, hidden], [pairs, width] sorted by expert.

    Its group is ``tile.rows / 2``. `aligned` has tiles of ``tile.pairs``.
    """
    (_, outputs, hidden), pairs, max_tiles = gate_up.shape, len(aligned.order), aligned.tiles.shape[1]
    width, column_tiles = outputs // 2, outputs // tile.rows
    values = x.values.new_empty(pairs, width)
    # Padded, because down reads the scales of a full tile from an expert's last pairs on.
    scales = x.scales.new_empty(column_tiles, pairs + tile.pairs)
    _grouped_gate_up[(min(max_tiles * column_tiles, tile.programs * multiprocessors(values.device)),)](
        x.values, x.scales, _describe(gate_up.values.flatten(0, 1), tile.rows, tile.depth), gate_up.scales, values,
        scales, scales.shape[1], aligned.order, aligned.tiles, torch.empty_like(aligned.tiles[0]), aligned.counters[:1],
        max_tiles, TOP_K=top_k, HIDDEN=hidden, WIDTH=width, TILES_P2=triton.next_power_of_2(max_tiles),
        PAIRS=tile.pairs, ROWS=tile.rows, DEPTH=tile.depth, STAGES=tile.stages, ITEMS_AHEAD=ITEMS_AHEAD,
        GELU=activation == "gelu_tanh", INTERLEAVE=INTERLEAVE, FP8_MAX=FP8_MAX, MIN_SCALE=MIN_SCALE,
        LOAD_WARPS=LOAD_WARPS, LOAD_REGISTERS=tile.load_registers, num_warps=tile.warps,
        maxnreg=max_registers(tile.warps + LOAD_WARPS, tile.programs),
    )  # fmt: skip
    return GroupQuantized(values, scales[:, :pairs].t(), width, tile.rows // 2)


def run_grouped_down(
    inner: GroupQuantized, down: Fp8, pairs: torch.Tensor, aligned: AlignedTokens, tile: GroupedTile
) -> None:
    """Runs the down GEMM of the result of `run_grouped_gate_up`, whose group is ``tile.depth``.

    Writes `pairs` [pairs, hidden], in the order of rows and choices.
    """
    (_, hidden, width), max_tiles, splits = down.shape, aligned.tiles.shape[1], aligned.rows // tile.pairs
    items = max_tiles * splits * (hidden // tile.rows)
    _grouped_down[(min(items, tile.programs * multiprocessors(pairs.device)),)](
        _describe(inner.values, tile.pairs, tile.depth), inner.scales, inner.scales.stride(1),
        _describe(down.values.flatten(0, 1), tile.rows, tile.depth), down.scales, pairs, aligned.order, aligned.tiles,
        torch.empty_like(aligned.tiles[0]), aligned.counters[1:], max_tiles, HIDDEN=hidden, WIDTH=width,
        TILES_P2=triton.next_power_of_2(max_tiles), SPLITS=splits, PAIRS=tile.pairs, COLUMNS=tile.rows,
        DEPTH=tile.depth, STAGES=tile.stages, ITEMS_AHEAD=ITEMS_AHEAD, LOAD_REGISTERS=tile.load_registers,
        num_warps=tile.warps, maxnreg=max_registers(tile.warps + LOAD_WARPS, tile.programs),
    )  # fmt: skip

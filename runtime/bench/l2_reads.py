"""Reads of a buffer that stays in the L2 cache, by TMA on all multiprocessors: the rate from L2 to shared memory.

A grouped GEMM reads each tile of its operands through L2, often several times. So its least time follows from this rate
if it is the limit, and not from that of device memory. The kernel computes nothing: the rate has no other bound.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from runtime.kernels.common import multiprocessors

BUFFER = 16 << 20  # bytes, a third of the L2 cache of an H200
DEPTH = 128  # bytes per row of a tile, the widest swizzle
ROWS = 256  # per tile, of 32 KB
STAGES = 6  # tiles in flight per multiprocessor: 192 KB of its shared memory
TILES = BUFFER // (ROWS * DEPTH)
PASSES = 8  # over the buffer, by each program of a launch


@gluon.jit
def _read_tiles(tiles, TILES: gl.constexpr, PASSES: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr):
    """Loads all tiles PASSES times per program. Programs begin at different tiles."""
    buffers = gl.allocate_shared_memory(tiles.dtype, [STAGES, ROWS, tiles.block_type.shape[1]], tiles.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(STAGES):
        mbarrier.init(full.index(n), count=1)
    total: gl.constexpr = TILES * PASSES
    first = gl.program_id(0) * TILES // gl.num_programs(0)
    for step in range(total + STAGES):
        stage = step % STAGES
        if step >= STAGES:  # this stage's earlier load
            mbarrier.wait(full.index(stage), (step // STAGES - 1) & 1)
        if step < total:
            mbarrier.expect(full.index(stage), tiles.block_type.nbytes)
            at = (first + step) % TILES * ROWS
            tma.async_copy_global_to_shared(tiles, [at, 0], full.index(stage), buffers.index(stage))


def l2_reads(device: torch.device) -> tuple[Callable[[int], None], int]:
    """Returns a launcher of reads, and the number of bytes that each launch reads. Needs a Hopper GPU."""
    numbers = torch.zeros(BUFFER // DEPTH, DEPTH, dtype=torch.uint8, device=device)
    layout = gl.NVMMASharedLayout.get_default_for([ROWS, DEPTH], gl.uint8)
    tiles, programs = TensorDescriptor.from_tensor(numbers, [ROWS, DEPTH], layout), multiprocessors(device)

    def launch(_: int) -> None:
        _read_tiles[(programs,)](tiles, TILES=TILES, PASSES=PASSES, ROWS=ROWS, STAGES=STAGES, num_warps=4)

    return launch, programs * PASSES * BUFFER

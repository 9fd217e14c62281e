"""Groups token-expert pairs by expert on the device, without a host sync (vLLM's `moe_align_block_size`).

With few pairs one program per expert reads all of them, counts those of lower experts and stores its own in order, in
one launch. Many pairs are split into chunks: pairs per chunk and expert are counted, summed over the chunks, then
scattered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.common import tl, triton

ONE_LAUNCH_PAIRS = 4096  # maximum pairs that one launch sorts
TILES_PER_STEP = 16  # tiles that a program stores per iteration
CHUNK, MANY_PAIRS = 128, 32768  # pairs per chunk, twice as many above MANY_PAIRS
COMPARE_CHUNK = 32  # pairs that each pair is compared with per iteration
CHUNKS_PER_STEP = 512  # chunks per iteration of the prefix sum
EXPERTS_PER_PROGRAM = 16  # experts per program of the prefix sum


@dataclass(frozen=True)
class AlignedTokens:
    """Token-expert pairs sorted by expert, in tiles of one expert each.

    Attributes:
        order: int32 [pairs], pair indices sorted by expert, stable. Pairs with expert -1 are left out, and as many
            entries at the end are undefined.
        tiles: int32 [3, max_num_tiles]: the expert (-1 for no tile), first position in `order`, and end of the expert's
            positions; in ascending order of experts.
        rows: rows per tile.
        gaps: unused tiles may lie between the tiles of different experts; otherwise they are at the end.
        counters: int32 [2], zeros: one for each of the two GEMMs, whose programs count work items.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    rows: int
    gaps: bool
    counters: torch.Tensor


def max_num_tiles(pairs: int, experts: int, rows: int) -> int:
    """Returns an upper bound of the number of tiles for any routing of `pairs` pairs.

    With gaps, an expert with n pairs before it begins at tile n // rows plus its id, because the experts before it
    never have more tiles.
    """
    return experts + pairs // rows


def moe_align_block_size_reference(ids: torch.Tensor, experts: int, rows: int, *, gaps: bool = True) -> AlignedTokens:
    """Sorts token-expert pairs by expert.

    Args:
        ids: int32 [rows of the batch, top_k], each below `experts` or -1.
        rows: rows per tile.
        gaps: see `AlignedTokens`.
    """
    flat = ids.flatten().long()
    tiles = torch.full((3, max_num_tiles(len(flat), experts, rows)), -1, dtype=torch.int32, device=ids.device)
    num_padding, *counts = torch.bincount(flat + 1, minlength=experts + 1).tolist()
    pos = num_tiles = 0
    for expert, count in enumerate(counts):
        for tile, first in enumerate(range(pos, pos + count, rows), expert + pos // rows if gaps else num_tiles):
            tiles[:, tile] = torch.tensor([expert, first, pos + count])
            num_tiles += 1
        pos += count
    order = flat.argsort(stable=True).roll(-num_padding).int()
    return AlignedTokens(order, tiles, rows, gaps, tiles.new_zeros(2))


@triton.jit
def _store_tiles(
    tiles_ptr, max_tiles, expert, experts, begin, after, start, count, ROWS: tl.constexpr, TILES_PER_STEP: tl.constexpr
):  # fmt: skip
    """Stores the expert's tiles from `begin` on and marks tiles up to `after` as unused, up to the end for the last
    expert.
    """
    if expert == experts - 1:
        after = max_tiles
    for first in range(begin, after, TILES_PER_STEP):
        tile = first + tl.arange(0, TILES_PER_STEP)
        pos = start + (tile - begin) * ROWS
        in_use, inside = pos < start + count, tile < after
        tl.store(tiles_ptr + tile, tl.where(in_use, expert, -1), mask=inside)
        tl.store(tiles_ptr + max_tiles + tile, tl.where(in_use, pos, -1), mask=inside)
        tl.store(tiles_ptr + 2 * max_tiles + tile, tl.where(in_use, start + count, -1), mask=inside)


@triton.jit
def is_tail_of_previous_tile(tiles_ptr, tile, expert, remaining, TAIL: tl.constexpr):
    """Whether the previous tile is of the same expert and its program also processes the `remaining` pairs."""
    num_tiles = remaining <= TAIL
    if TAIL > 0:
        num_tiles = num_tiles & (tl.load(tiles_ptr + tile - 1, mask=tile > 0, other=-1) == expert)
    return num_tiles


@triton.jit(do_not_specialize=["pairs", "max_tiles"])  # avoids a recompilation per value
def _sort(
    ids_ptr, order_ptr, tiles_ptr, counters_ptr, pairs, max_tiles, ROWS: tl.constexpr, READ: tl.constexpr,
    TILES_PER_STEP: tl.constexpr
):  # fmt: skip
    """Sorts the pairs of one expert per program. READ is at least the number of pairs."""
    expert, index = tl.program_id(0), tl.arange(0, READ)
    ids = tl.load(ids_ptr + index, mask=index < pairs, other=-1)
    is_expert = (ids == expert).to(tl.int32)
    start, count = tl.sum(((ids >= 0) & (ids < expert)).to(tl.int32), 0), tl.sum(is_expert, 0)
    begin, after = expert + start // ROWS, expert + 1 + (start + count) // ROWS
    _store_tiles(tiles_ptr, max_tiles, expert, tl.num_programs(0), begin, after, start, count, ROWS, TILES_PER_STEP)
    if expert == 0:
        tl.store(counters_ptr + tl.arange(0, 2), tl.zeros([2], tl.int32))
    if count > 0:
        tl.store(order_ptr + start + tl.cumsum(is_expert, 0) - 1, index, mask=is_expert != 0)


@triton.jit(do_not_specialize=["pairs"])
def _count(ids_ptr, counts_ptr, pairs, EXPERTS_P2: tl.constexpr, CHUNK: tl.constexpr):
    """Counts the pairs of each expert in one chunk per program, [chunks, experts]."""
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
    count = tl.histogram(tl.maximum(ids, 0), EXPERTS_P2, mask=ids >= 0)
    tl.store(counts_ptr + chunk * EXPERTS_P2 + tl.arange(0, EXPERTS_P2), count)


@triton.jit(do_not_specialize=["chunks"])
def _prefix_sum(
    counts_ptr, totals_ptr, chunks, EXPERTS_P2: tl.constexpr, CHUNKS_PER_STEP: tl.constexpr,
    EXPERTS_PER_PROGRAM: tl.constexpr
):  # fmt: skip
    """Replaces counts by the sums over previous chunks, and stores the totals.

    Each program processes EXPERTS_PER_PROGRAM experts.
    """
    expert = tl.program_id(0) * EXPERTS_PER_PROGRAM + tl.arange(0, EXPERTS_PER_PROGRAM)
    num_tiles = tl.zeros([EXPERTS_PER_PROGRAM], tl.int32)
    for first in range(0, chunks, CHUNKS_PER_STEP):
        chunk = first + tl.arange(0, CHUNKS_PER_STEP)
        at = counts_ptr + chunk[:, None] * EXPERTS_P2 + expert[None, :]
        ok = (chunk < chunks)[:, None] & (expert < EXPERTS_P2)[None, :]
        count = tl.load(at, mask=ok, other=0)
        tl.store(at, tl.cumsum(count, 0) - count + num_tiles[None, :], mask=ok)
        num_tiles += tl.sum(count, 0)
    tl.store(totals_ptr + expert, num_tiles, mask=expert < EXPERTS_P2)


@triton.jit(do_not_specialize=["pairs", "max_tiles", "chunks"])
def _scatter(
    ids_ptr, order_ptr, counts_ptr, starts_ptr, totals_ptr, tiles_ptr, counters_ptr, pairs, max_tiles, chunks, experts,
    ROWS: tl.constexpr, EXPERTS_P2: tl.constexpr, CHUNK: tl.constexpr, COMPARE_CHUNK: tl.constexpr,
    TILES_PER_STEP: tl.constexpr,
):  # fmt: skip
    """Stores the pairs of one chunk per program at the positions of their experts, in ascending order.

    Further programs, one per expert, store the tiles.
    """
    program = tl.program_id(0)
    experts_range = tl.arange(0, EXPERTS_P2)
    total = tl.load(totals_ptr + experts_range)
    if program < chunks:
        at = program * EXPERTS_P2
        tl.store(
            starts_ptr + at + experts_range, tl.cumsum(total, 0) - total + tl.load(counts_ptr + at + experts_range)
        )
        index = tl.arange(0, CHUNK)
        pair = program * CHUNK + index
        ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
        rank = tl.zeros([CHUNK], tl.int32)
        for first in range(0, CHUNK, COMPARE_CHUNK):
            other = program * CHUNK + first + tl.arange(0, COMPARE_CHUNK)
            others = tl.load(ids_ptr + other, mask=other < pairs, other=-1)
            earlier = (others[None, :] == ids[:, None]) & (other[None, :] < pair[:, None])
            rank += tl.sum(earlier.to(tl.int32), 1)
        tl.debug_barrier()  # other threads of this program wrote the starts
        pos = tl.load(starts_ptr + at + ids, mask=ids >= 0, other=0) + rank
        tl.store(order_ptr + pos, pair, mask=ids >= 0)
    else:
        expert = program - chunks
        if expert == 0:
            tl.store(counters_ptr + tl.arange(0, 2), tl.zeros([2], tl.int32))
        start = tl.sum(tl.where(experts_range < expert, total, 0), 0)
        count = tl.sum(tl.where(experts_range == expert, total, 0), 0)
        begin = tl.sum(tl.where(experts_range < expert, tl.cdiv(total, ROWS), 0), 0)
        after = begin + tl.cdiv(count, ROWS)
        _store_tiles(tiles_ptr, max_tiles, expert, experts, begin, after, start, count, ROWS, TILES_PER_STEP)


def moe_align_block_size(ids: torch.Tensor, experts: int, rows: int) -> AlignedTokens:
    """Computes `moe_align_block_size_reference` on a GPU, in one launch or three; deterministic, without atomics."""
    pairs = ids.numel()
    max_tiles = max_num_tiles(pairs, experts, rows)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(3, max_tiles, dtype=torch.int32, device=ids.device)
    counters = tiles.new_empty(2)
    if pairs <= ONE_LAUNCH_PAIRS:
        read = max(256, triton.next_power_of_2(pairs))
        warps = 4 if read <= 1024 else 8
        _sort[(experts,)](
            ids, order, tiles, counters, pairs, max_tiles, ROWS=rows, READ=read, TILES_PER_STEP=TILES_PER_STEP,
            num_warps=warps,
        )  # fmt: skip
        return AlignedTokens(order, tiles, rows, gaps=True, counters=counters)
    chunk = CHUNK if pairs <= MANY_PAIRS else 2 * CHUNK
    chunks, experts_p2 = triton.cdiv(pairs, chunk), triton.next_power_of_2(experts)
    counts, starts = torch.empty(2, chunks, experts_p2, dtype=torch.int32, device=ids.device)
    totals = torch.empty(experts_p2, dtype=torch.int32, device=ids.device)
    _count[(chunks,)](ids, counts, pairs, EXPERTS_P2=experts_p2, CHUNK=chunk, num_warps=4)
    experts_per_program = min(EXPERTS_PER_PROGRAM, experts_p2)
    chunks_per_step = min(CHUNKS_PER_STEP, triton.next_power_of_2(chunks))
    _prefix_sum[(experts_p2 // experts_per_program,)](
        counts, totals, chunks, EXPERTS_P2=experts_p2, CHUNKS_PER_STEP=chunks_per_step,
        EXPERTS_PER_PROGRAM=experts_per_program, num_warps=8,
    )  # fmt: skip
    _scatter[(chunks + experts,)](
        ids, order, counts, starts, totals, tiles, counters, pairs, max_tiles, chunks, experts, ROWS=rows,
        EXPERTS_P2=experts_p2, CHUNK=chunk, COMPARE_CHUNK=COMPARE_CHUNK, TILES_PER_STEP=TILES_PER_STEP, num_warps=8,
    )  # fmt: skip
    return AlignedTokens(order, tiles, rows, gaps=False, counters=counters)

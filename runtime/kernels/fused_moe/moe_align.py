"""Groups (row, choice) pairs by expert, on the device and without telling the host how many each expert got.

Of few pairs each expert has a program, which reads all of them and minds its own: it counts those that come before its,
and then writes its own in their order. None waits for another, so that one launch does it. Many are cut into chunks,
whose pairs of each expert are counted, then added up over the chunks, and then placed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.triton_import import tl, triton

FEW = 4096  # most pairs that one launch sorts
TILES = 16  # tiles that a program lays out at a time
CHUNK, MANY = 128, 32768  # pairs of a chunk, twice as many where there are more than that many pairs
PART = 32  # that each of them is compared with at a time
ADDED = 512  # chunks that are added up at a time,
TOGETHER = 16  # for so many experts


@dataclass(frozen=True)
class ExpertTiles:
    """Pairs in expert order, cut into tiles of one expert each.

    order: int32 [pairs], pair indices sorted by expert, stable; dead pairs (expert -1) are not among them, and as many
    places at the end hold anything. tiles: int32 [3, most tiles]: a tile's expert (-1: no tile), its first place in
    `order`, and the end of its expert's places; in the order of experts.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    rows: int  # of one tile
    gaps: bool  # between the tiles of different experts; else all that are none come last


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """Room for the tiles of `pairs` pairs, however they fall on the experts. With gaps an expert before which there are
    n pairs begins at tile n // rows + its number: those before it never have more."""
    return experts + pairs // rows


def sort_by_expert_reference(ids: torch.Tensor, experts: int, rows: int, *, gaps: bool = True) -> ExpertTiles:
    """ids: int32 [rows of the batch, top_k], each below `experts`; -1: dead -> see ExpertTiles."""
    flat = ids.flatten().long()
    tiles = torch.full((3, most_tiles(len(flat), experts, rows)), -1, dtype=torch.int32, device=ids.device)
    dead, *counts = torch.bincount(flat + 1, minlength=experts + 1).tolist()
    place = done = 0
    for expert, count in enumerate(counts):
        for tile, first in enumerate(range(place, place + count, rows), expert + place // rows if gaps else done):
            tiles[:, tile] = torch.tensor([expert, first, place + count])
            done += 1
        place += count
    return ExpertTiles(flat.argsort(stable=True).roll(-dead).int(), tiles, rows, gaps)


@triton.jit
def _lay_out(
    tiles_ptr, most, expert, experts, begin, after, start, count, ROWS: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """The expert's tiles, from `begin` on, and no tiles up to `after`, the last expert's up to the end."""
    if expert == experts - 1:
        after = most
    for first in range(begin, after, TILES):
        tile = first + tl.arange(0, TILES)
        place = start + (tile - begin) * ROWS
        real, inside = place < start + count, tile < after
        tl.store(tiles_ptr + tile, tl.where(real, expert, -1), mask=inside)
        tl.store(tiles_ptr + most + tile, tl.where(real, place, -1), mask=inside)
        tl.store(tiles_ptr + 2 * most + tile, tl.where(real, start + count, -1), mask=inside)


@triton.jit
def done_before(tiles_ptr, tile, expert, left, REST: tl.constexpr):
    """Whether the tile before is the same expert's, and its program does the few pairs that are left as well."""
    done = left <= REST
    if REST > 0:
        done = done & (tl.load(tiles_ptr + tile - 1, mask=tile > 0, other=-1) == expert)
    return done


@triton.jit(do_not_specialize=["pairs", "most"])  # else each new value may compile again
def _sort(
    ids_ptr, order_ptr, tiles_ptr, pairs, most, ROWS: tl.constexpr, READ: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """One program an expert; READ: at least as many as there are pairs."""
    expert, lane = tl.program_id(0), tl.arange(0, READ)
    ids = tl.load(ids_ptr + lane, mask=lane < pairs, other=-1)
    mine = (ids == expert).to(tl.int32)
    start, count = tl.sum(((ids >= 0) & (ids < expert)).to(tl.int32), 0), tl.sum(mine, 0)
    begin, after = expert + start // ROWS, expert + 1 + (start + count) // ROWS
    _lay_out(tiles_ptr, most, expert, tl.num_programs(0), begin, after, start, count, ROWS, TILES)
    if count > 0:
        tl.store(order_ptr + start + tl.cumsum(mine, 0) - 1, lane, mask=mine != 0)


@triton.jit(do_not_specialize=["pairs"])
def _count(ids_ptr, counts_ptr, pairs, EXPERTS_P2: tl.constexpr, CHUNK: tl.constexpr):
    """One program a chunk: its pairs of each expert, to [chunks, experts]."""
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
    count = tl.histogram(tl.maximum(ids, 0), EXPERTS_P2, mask=ids >= 0)
    tl.store(counts_ptr + chunk * EXPERTS_P2 + tl.arange(0, EXPERTS_P2), count)


@triton.jit(do_not_specialize=["chunks"])
def _add_up(
    counts_ptr, totals_ptr, chunks, EXPERTS_P2: tl.constexpr, ADDED: tl.constexpr, TOGETHER: tl.constexpr
):  # fmt: skip
    """One program TOGETHER experts: the pairs in the chunks before, in place of each chunk's own; and in all."""
    expert = tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)
    done = tl.zeros([TOGETHER], tl.int32)
    for first in range(0, chunks, ADDED):
        chunk = first + tl.arange(0, ADDED)
        at = counts_ptr + chunk[:, None] * EXPERTS_P2 + expert[None, :]
        ok = (chunk < chunks)[:, None] & (expert < EXPERTS_P2)[None, :]
        count = tl.load(at, mask=ok, other=0)
        tl.store(at, tl.cumsum(count, 0) - count + done[None, :], mask=ok)
        done += tl.sum(count, 0)
    tl.store(totals_ptr + expert, done, mask=expert < EXPERTS_P2)


@triton.jit(do_not_specialize=["pairs", "most", "chunks"])
def _place(
    ids_ptr, order_ptr, counts_ptr, starts_ptr, totals_ptr, tiles_ptr, pairs, most, chunks, experts,
    ROWS: tl.constexpr, EXPERTS_P2: tl.constexpr, CHUNK: tl.constexpr, PART: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One program a chunk, whose pairs go to their experts' places, those of one expert in the order of their index;
    and after them one an expert, which lays out its tiles."""
    program = tl.program_id(0)
    every = tl.arange(0, EXPERTS_P2)
    total = tl.load(totals_ptr + every)
    if program < chunks:
        at = program * EXPERTS_P2
        tl.store(starts_ptr + at + every, tl.cumsum(total, 0) - total + tl.load(counts_ptr + at + every))
        lane = tl.arange(0, CHUNK)
        pair = program * CHUNK + lane
        ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
        rank = tl.zeros([CHUNK], tl.int32)
        for first in range(0, CHUNK, PART):
            other = program * CHUNK + first + tl.arange(0, PART)
            others = tl.load(ids_ptr + other, mask=other < pairs, other=-1)
            earlier = (others[None, :] == ids[:, None]) & (other[None, :] < pair[:, None])
            rank += tl.sum(earlier.to(tl.int32), 1)
        tl.debug_barrier()  # the starts are this program's own; other threads of it wrote them
        place = tl.load(starts_ptr + at + ids, mask=ids >= 0, other=0) + rank
        tl.store(order_ptr + place, pair, mask=ids >= 0)
    else:
        expert = program - chunks
        start = tl.sum(tl.where(every < expert, total, 0), 0)
        count = tl.sum(tl.where(every == expert, total, 0), 0)
        begin = tl.sum(tl.where(every < expert, tl.cdiv(total, ROWS), 0), 0)
        after = begin + tl.cdiv(count, ROWS)
        _lay_out(tiles_ptr, most, expert, experts, begin, after, start, count, ROWS, TILES)


def sort_by_expert(ids: torch.Tensor, experts: int, rows: int) -> ExpertTiles:
    """`sort_by_expert_reference` on a GPU, in one launch or three; deterministic (it counts, it never races)."""
    pairs = ids.numel()
    most = most_tiles(pairs, experts, rows)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(3, most, dtype=torch.int32, device=ids.device)
    if pairs <= FEW:
        read = max(256, triton.next_power_of_2(pairs))
        warps = 4 if read <= 1024 else 8
        _sort[(experts,)](ids, order, tiles, pairs, most, ROWS=rows, READ=read, TILES=TILES, num_warps=warps)
        return ExpertTiles(order, tiles, rows, gaps=True)
    chunk = CHUNK if pairs <= MANY else 2 * CHUNK
    chunks, experts_p2 = triton.cdiv(pairs, chunk), triton.next_power_of_2(experts)
    counts, starts = torch.empty(2, chunks, experts_p2, dtype=torch.int32, device=ids.device)
    totals = torch.empty(experts_p2, dtype=torch.int32, device=ids.device)
    _count[(chunks,)](ids, counts, pairs, EXPERTS_P2=experts_p2, CHUNK=chunk, num_warps=4)
    together = min(TOGETHER, experts_p2)
    added = min(ADDED, triton.next_power_of_2(chunks))
    _add_up[(experts_p2 // together,)](
        counts, totals, chunks, EXPERTS_P2=experts_p2, ADDED=added, TOGETHER=together, num_warps=8
    )
    _place[(chunks + experts,)](
        ids, order, counts, starts, totals, tiles, pairs, most, chunks, experts, ROWS=rows, EXPERTS_P2=experts_p2,
        CHUNK=chunk, PART=PART, TILES=TILES, num_warps=8,
    )  # fmt: skip
    return ExpertTiles(order, tiles, rows, gaps=False)

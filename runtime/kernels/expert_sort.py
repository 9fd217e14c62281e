"""Groups (row, choice) pairs by expert, on the device and without telling the host how many each expert got.

A counting sort: chunks of pairs are counted, and each chunk then finds where its pairs go from the counts of all: what
comes before them in the order of experts and, within an expert, of chunks. Each pair is read three times, however many
experts and pairs there are; of few, every program counts all for itself, which saves a launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.triton_import import tl, triton

CHUNK = 512  # pairs that a program counts and places,
FEW = 128  # and where there are few: one a thread, for with fewer threads would hold the same pairs
MANY = 64  # chunks of a few pairs, beyond which chunks are larger
AT_ONCE = 16384  # most pairs that one launch sorts,
COUNTED = 2048  # of which a program counts so many at a time
PART = 32  # pairs that each of a chunk is compared with at a time
SUMMED = 4096  # counts that are summed up at a time
TILES = 64  # tiles that a program lays out


@dataclass(frozen=True)
class ExpertTiles:
    """Pairs in expert order, cut into tiles of one expert each.

    order: int32 [pairs], pair indices sorted by expert, stable; dead pairs (expert -1) are not among them, and as many
    places at the end hold anything. tiles: int32 [3, most tiles]: a tile's expert (-1: no tile), its first place in
    `order`, and the end of its expert's places.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    rows: int  # of one tile


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """The most tiles that `pairs` pairs can make, however they fall on the experts."""
    active = min(pairs, experts)
    return active + (pairs - active) // rows


def sort_by_expert_reference(ids: torch.Tensor, experts: int, rows: int) -> ExpertTiles:
    """ids: int32 [rows of the batch, top_k], each below `experts`; -1: dead -> see ExpertTiles."""
    flat = ids.flatten().long()
    tiles = torch.full((3, most_tiles(len(flat), experts, rows)), -1, dtype=torch.int32, device=ids.device)
    dead, *counts = torch.bincount(flat + 1, minlength=experts + 1).tolist()
    place = tile = 0
    for expert, count in enumerate(counts):
        for first in range(place, place + count, rows):
            tiles[:, tile] = torch.tensor([expert, first, place + count])
            tile += 1
        place += count
    return ExpertTiles(flat.argsort(stable=True).roll(-dead).int(), tiles, rows)


@triton.jit(do_not_specialize=["pairs"])  # else each new value may compile again
def _count(ids_ptr, counts_ptr, pairs, EXPERTS_P2: tl.constexpr, CHUNK: tl.constexpr):
    """One program a chunk: its pairs of each expert, to [chunks, experts]."""
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
    count = tl.histogram(tl.maximum(ids, 0), EXPERTS_P2, mask=ids >= 0)
    tl.store(counts_ptr + chunk * EXPERTS_P2 + tl.arange(0, EXPERTS_P2), count)


@triton.jit
def _sum_up(counts_ptr, chunks, chunk, EXPERTS_P2: tl.constexpr, SUMMED: tl.constexpr):
    """[experts]: each one's pairs in all chunks, and in those before `chunk`."""
    expert = tl.arange(0, EXPERTS_P2)
    total = tl.zeros([EXPERTS_P2], tl.int32)
    before = tl.zeros([EXPERTS_P2], tl.int32)
    for first in range(0, chunks, SUMMED):
        of = first + tl.arange(0, SUMMED)
        at = of[:, None] * EXPERTS_P2 + expert[None, :]
        count = tl.load(counts_ptr + at, mask=of[:, None] < chunks, other=0)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where(of[:, None] < chunk, count, 0), 0)
    return total, before


@triton.jit
def _tally(ids_ptr, pairs, mine, EXPERTS_P2: tl.constexpr, COUNTED: tl.constexpr):
    """[experts]: each one's pairs, and those of them before pair `mine`."""
    total = tl.zeros([EXPERTS_P2], tl.int32)
    before = tl.zeros([EXPERTS_P2], tl.int32)
    for first in range(0, pairs, COUNTED):
        pair = first + tl.arange(0, COUNTED)
        ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
        total += tl.histogram(tl.maximum(ids, 0), EXPERTS_P2, mask=ids >= 0)
        if first < mine:
            before += tl.histogram(tl.maximum(ids, 0), EXPERTS_P2, mask=(ids >= 0) & (pair < mine))
    return total, before


@triton.jit
def _place_chunk(
    ids_ptr, order_ptr, starts_ptr, pairs, chunk, total, before,
    EXPERTS_P2: tl.constexpr, CHUNK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The chunk's pairs into their experts' places, those of one expert in the order of their index."""
    tl.store(starts_ptr + chunk * EXPERTS_P2 + tl.arange(0, EXPERTS_P2), tl.cumsum(total, 0) - total + before)
    lane = tl.arange(0, CHUNK)
    pair = chunk * CHUNK + lane
    ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
    rank = tl.zeros([CHUNK], tl.int32)
    for first in range(0, CHUNK, PART):
        other = first + tl.arange(0, PART)
        others = tl.load(ids_ptr + chunk * CHUNK + other, mask=chunk * CHUNK + other < pairs, other=-1)
        earlier = (others[None, :] == ids[:, None]) & (other[None, :] < lane[:, None])
        rank += tl.sum(earlier.to(tl.int32), 1)
    tl.debug_barrier()  # the starts are this program's own; other threads of it wrote them
    start = tl.load(starts_ptr + chunk * EXPERTS_P2 + ids, mask=ids >= 0, other=0)
    tl.store(order_ptr + start + rank, pair, mask=ids >= 0)


@triton.jit
def _lay_out(
    tiles_ptr, most, part, total,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_P2: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """TILES tiles: which expert each belongs to, found by counting the experts whose tiles end before."""
    expert = tl.arange(0, EXPERTS_P2)
    ok = expert < EXPERTS
    end = tl.cumsum(total, 0)
    start = end - total
    count = (total + ROWS - 1) // ROWS
    last = tl.cumsum(count, 0)
    tile = part * TILES + tl.arange(0, TILES)
    owner = tl.sum(((last[None, :] <= tile[:, None]) & ok[None, :]).to(tl.int32), 1)
    hit = expert[None, :] == owner[:, None]
    place = start[None, :] + (tile[:, None] - (last - count)[None, :]) * ROWS
    first = tl.sum(tl.where(hit, place, 0), 1)
    finish = tl.sum(tl.where(hit, end[None, :], 0), 1)
    real = owner < EXPERTS
    tl.store(tiles_ptr + tile, tl.where(real, owner, -1), mask=tile < most)
    tl.store(tiles_ptr + most + tile, tl.where(real, first, -1), mask=tile < most)
    tl.store(tiles_ptr + 2 * most + tile, tl.where(real, finish, -1), mask=tile < most)


@triton.jit(do_not_specialize=["pairs", "most", "chunks"])
def _place(
    ids_ptr, order_ptr, counts_ptr, starts_ptr, tiles_ptr, pairs, most, chunks,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_P2: tl.constexpr,
    CHUNK: tl.constexpr, PART: tl.constexpr, TILES: tl.constexpr, SUMMED: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """One program a chunk of pairs, and after them one TILES tiles. SUMMED: the chunks are counted already; 0: not."""
    program = tl.program_id(0)
    if SUMMED > 0:
        total, before = _sum_up(counts_ptr, chunks, program, EXPERTS_P2, SUMMED)
    else:
        total, before = _tally(ids_ptr, pairs, program * CHUNK, EXPERTS_P2, COUNTED)
    if program < chunks:
        _place_chunk(ids_ptr, order_ptr, starts_ptr, pairs, program, total, before, EXPERTS_P2, CHUNK, PART)
    else:
        _lay_out(tiles_ptr, most, program - chunks, total, ROWS, EXPERTS, EXPERTS_P2, TILES)


def sort_by_expert(ids: torch.Tensor, experts: int, rows: int) -> ExpertTiles:
    """`sort_by_expert_reference` on a GPU, in one launch or two; deterministic (it counts, it never races)."""
    pairs = ids.numel()
    most = most_tiles(pairs, experts, rows)
    chunk = FEW if pairs <= FEW * MANY else CHUNK
    chunks, experts_p2 = triton.cdiv(pairs, chunk), triton.next_power_of_2(experts)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    starts = torch.empty(chunks, experts_p2, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(3, most, dtype=torch.int32, device=ids.device)
    counts, summed = starts, 0
    if pairs > AT_ONCE:
        counts = torch.empty_like(starts)
        summed = max(1, min(triton.next_power_of_2(chunks), SUMMED // experts_p2))
        _count[(chunks,)](ids, counts, pairs, EXPERTS_P2=experts_p2, CHUNK=chunk, num_warps=4)
    _place[(chunks + triton.cdiv(most, TILES),)](
        ids, order, counts, starts, tiles, pairs, most, chunks, ROWS=rows, EXPERTS=experts, EXPERTS_P2=experts_p2,
        CHUNK=chunk, PART=PART, TILES=TILES, SUMMED=summed,
        COUNTED=min(COUNTED, max(256, triton.next_power_of_2(pairs))), num_warps=8,
    )  # fmt: skip
    return ExpertTiles(order, tiles, rows)

"""Groups (row, choice) pairs by expert, on the device and without telling the host how many each expert got.

A counting sort: chunks of pairs are counted, the counts are summed up in the order of experts and, within an expert, of
chunks, and each chunk then knows where its pairs go. Each pair is read a fixed number of times, however many experts
and pairs there are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.triton_import import tl, triton

CHUNK = 512  # most pairs that a program counts and places,
LEAST = 128  # and fewest, one a thread: with fewer, threads would hold the same pairs
PART = 32  # of them, what each is compared with at a time
SCANNED = 4096  # counts that are summed up at a time
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


@triton.jit(do_not_specialize=["pairs", "chunks"])  # else each new value may compile again
def _count(
    ids_ptr, starts_ptr, pairs, chunks,
    EXPERTS: tl.constexpr, EXPERTS_P2: tl.constexpr, CHUNK: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """One program a chunk: its pairs of each expert, to [experts, chunks]. A chunk that is alone sums them up too."""
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
    count = tl.histogram(tl.maximum(ids, 0), EXPERTS_P2, mask=ids >= 0)
    expert = tl.arange(0, EXPERTS_P2)
    if ALONE:
        tl.store(starts_ptr + EXPERTS, tl.sum(count, 0))
        count = tl.cumsum(count, 0) - count
    tl.store(starts_ptr + expert * chunks + chunk, count, mask=expert < EXPERTS)


@triton.jit(do_not_specialize=["size"])
def _sum_up(starts_ptr, size, SCANNED: tl.constexpr):
    """One program: in the place of each of `size` counts what those before it add up to, and after them their sum."""
    before = 0
    for first in range(0, size, SCANNED):
        at = first + tl.arange(0, SCANNED)
        count = tl.load(starts_ptr + at, mask=at < size, other=0)
        tl.store(starts_ptr + at, before + tl.cumsum(count, 0) - count, mask=at < size)
        before += tl.sum(count, 0)
    tl.store(starts_ptr + size, before)


@triton.jit
def _place_chunk(ids_ptr, order_ptr, starts_ptr, pairs, chunks, chunk, CHUNK: tl.constexpr, PART: tl.constexpr):
    """The chunk's pairs into their experts' places, those of one expert in the order of their index."""
    lane = tl.arange(0, CHUNK)
    pair = chunk * CHUNK + lane
    ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
    rank = tl.zeros([CHUNK], tl.int32)
    for first in range(0, CHUNK, PART):
        other = first + tl.arange(0, PART)
        others = tl.load(ids_ptr + chunk * CHUNK + other, mask=chunk * CHUNK + other < pairs, other=-1)
        before = (others[None, :] == ids[:, None]) & (other[None, :] < lane[:, None])
        rank += tl.sum(before.to(tl.int32), 1)
    start = tl.load(starts_ptr + ids * chunks + chunk, mask=ids >= 0, other=0)
    tl.store(order_ptr + start + rank, pair, mask=ids >= 0)


@triton.jit
def _lay_out(
    starts_ptr, tiles_ptr, most, chunks, part,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_P2: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """TILES tiles: which expert each belongs to, found by counting the experts whose tiles end before."""
    expert = tl.arange(0, EXPERTS_P2)
    ok = expert < EXPERTS
    start = tl.load(starts_ptr + expert * chunks, mask=ok, other=0)
    end = tl.load(starts_ptr + (expert + 1) * chunks, mask=ok, other=0)
    count = (end - start + ROWS - 1) // ROWS
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
    ids_ptr, order_ptr, starts_ptr, tiles_ptr, pairs, most, chunks,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_P2: tl.constexpr,
    CHUNK: tl.constexpr, PART: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One program a chunk of pairs, and after them one TILES tiles."""
    program = tl.program_id(0)
    if program < chunks:
        _place_chunk(ids_ptr, order_ptr, starts_ptr, pairs, chunks, program, CHUNK, PART)
    else:
        _lay_out(starts_ptr, tiles_ptr, most, chunks, program - chunks, ROWS, EXPERTS, EXPERTS_P2, TILES)


def sort_by_expert(ids: torch.Tensor, experts: int, rows: int) -> ExpertTiles:
    """`sort_by_expert_reference` on a GPU, in three launches, two for a few pairs; deterministic (it counts, it never
    races)."""
    pairs = ids.numel()
    most = most_tiles(pairs, experts, rows)
    chunk = min(CHUNK, max(LEAST, triton.next_power_of_2(pairs)))
    chunks, experts_p2 = triton.cdiv(pairs, chunk), triton.next_power_of_2(experts)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    starts = torch.empty(experts * chunks + 1, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(3, most, dtype=torch.int32, device=ids.device)
    _count[(chunks,)](
        ids, starts, pairs, chunks, EXPERTS=experts, EXPERTS_P2=experts_p2, CHUNK=chunk, ALONE=chunks == 1, num_warps=4
    )  # fmt: skip
    if chunks > 1:
        _sum_up[(1,)](starts, experts * chunks, SCANNED=SCANNED, num_warps=8)
    _place[(chunks + triton.cdiv(most, TILES),)](
        ids, order, starts, tiles, pairs, most, chunks, ROWS=rows, EXPERTS=experts, EXPERTS_P2=experts_p2,
        CHUNK=chunk, PART=PART, TILES=TILES, num_warps=8,
    )  # fmt: skip
    return ExpertTiles(order, tiles, rows)

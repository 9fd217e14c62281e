"""Groups (row, choice) pairs by expert, on the device and without telling the host how many each expert got."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.triton_import import tl, triton

CHUNK = 2048  # pairs a program reads at a time
TILES = 64  # tiles a program of the second kernel lays out


@dataclass(frozen=True)
class ExpertTiles:
    """Pairs in expert order, cut into tiles of one expert each.

    order: int32 [pairs], pair indices sorted by expert, stable. tiles: int32 [3, most tiles]: a tile's expert (-1: no
    tile), its first place in `order`, and the end of its expert's places.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    rows: int  # of one tile


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """The most tiles that `pairs` pairs can make, however they fall on the experts."""
    active = min(pairs, experts)
    return active + (pairs - active) // rows


def sort_by_expert_reference(ids: torch.Tensor, experts: int, rows: int) -> ExpertTiles:
    """ids: int32 [rows of the batch, top_k] -> see ExpertTiles."""
    flat = ids.flatten().long()
    tiles = torch.full((3, most_tiles(len(flat), experts, rows)), -1, dtype=torch.int32, device=ids.device)
    place = tile = 0
    for expert, count in enumerate(torch.bincount(flat, minlength=experts).tolist()):
        for first in range(place, place + count, rows):
            tiles[:, tile] = torch.tensor([expert, first, place + count])
            tile += 1
        place += count
    return ExpertTiles(flat.argsort(stable=True).int(), tiles, rows)


@triton.jit(do_not_specialize=["pairs"])  # else each new value may compile again
def _sort(ids_ptr, order_ptr, starts_ptr, pairs, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    """One program an expert: count the pairs of lower experts, then place its own in order of their index."""
    expert = tl.program_id(0)
    before = 0
    for first in range(0, pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=EXPERTS)
        before += tl.sum((ids < expert).to(tl.int32), 0)
    tl.store(starts_ptr + expert, before)
    place = before
    for first in range(0, pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        mine = tl.load(ids_ptr + pair, mask=pair < pairs, other=EXPERTS) == expert
        rank = tl.cumsum(mine.to(tl.int32), 0)
        tl.store(order_ptr + place + rank - 1, pair, mask=mine)
        place += tl.sum(mine.to(tl.int32), 0)
    if expert == EXPERTS - 1:
        tl.store(starts_ptr + EXPERTS, place)


@triton.jit(do_not_specialize=["most"])
def _lay_out(
    starts_ptr, tiles_ptr, most, ROWS: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_P2: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """One program TILES tiles: which expert each belongs to, found by counting the experts whose tiles end before."""
    expert = tl.arange(0, EXPERTS_P2)
    ok = expert < EXPERTS
    start = tl.load(starts_ptr + expert, mask=ok, other=0)
    end = tl.load(starts_ptr + expert + 1, mask=ok, other=0)
    count = (end - start + ROWS - 1) // ROWS
    last = tl.cumsum(count, 0)
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    owner = tl.sum(((last[None, :] <= tile[:, None]) & ok[None, :]).to(tl.int32), 1)
    hit = expert[None, :] == owner[:, None]
    place = start[None, :] + (tile[:, None] - (last - count)[None, :]) * ROWS
    first = tl.sum(tl.where(hit, place, 0), 1)
    finish = tl.sum(tl.where(hit, end[None, :], 0), 1)
    real = owner < EXPERTS
    tl.store(tiles_ptr + tile, tl.where(real, owner, -1), mask=tile < most)
    tl.store(tiles_ptr + most + tile, tl.where(real, first, -1), mask=tile < most)
    tl.store(tiles_ptr + 2 * most + tile, tl.where(real, finish, -1), mask=tile < most)


def sort_by_expert(ids: torch.Tensor, experts: int, rows: int) -> ExpertTiles:
    """`sort_by_expert_reference` on a GPU, in two launches; deterministic (it counts, it never races)."""
    pairs = ids.numel()
    most = most_tiles(pairs, experts, rows)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    starts = torch.empty(experts + 1, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(3, most, dtype=torch.int32, device=ids.device)
    chunk = min(CHUNK, max(32, triton.next_power_of_2(pairs)))
    _sort[(experts,)](ids, order, starts, pairs, EXPERTS=experts, CHUNK=chunk, num_warps=4)
    _lay_out[(triton.cdiv(most, TILES),)](
        starts, tiles, most, ROWS=rows, EXPERTS=experts, EXPERTS_P2=triton.next_power_of_2(experts), TILES=TILES,
        num_warps=4,
    )  # fmt: skip
    return ExpertTiles(order, tiles, rows)

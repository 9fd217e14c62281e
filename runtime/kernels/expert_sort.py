"""Groups (row, choice) pairs by expert, on the device and without telling the host how many each expert got.

Each expert has a program, which reads all pairs and minds its own: it counts those that come before its, and then
writes its own in their order. None waits for another, so that one launch does it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.triton_import import tl, triton

READ = 4096  # most pairs that a program reads at a time
TILES = 16  # tiles that it lays out at a time


@dataclass(frozen=True)
class ExpertTiles:
    """Pairs in expert order, cut into tiles of one expert each.

    order: int32 [pairs], pair indices sorted by expert, stable; dead pairs (expert -1) are not among them, and as many
    places at the end hold anything. tiles: int32 [3, most tiles]: a tile's expert (-1: no tile), its first place in
    `order`, and the end of its expert's places; in the order of experts, with gaps.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    rows: int  # of one tile


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """Room for the tiles of `pairs` pairs, however they fall on the experts. An expert before which there are n pairs
    begins at tile n // rows + its number: those before it never have more."""
    return experts + pairs // rows


def sort_by_expert_reference(ids: torch.Tensor, experts: int, rows: int) -> ExpertTiles:
    """ids: int32 [rows of the batch, top_k], each below `experts`; -1: dead -> see ExpertTiles."""
    flat = ids.flatten().long()
    tiles = torch.full((3, most_tiles(len(flat), experts, rows)), -1, dtype=torch.int32, device=ids.device)
    dead, *counts = torch.bincount(flat + 1, minlength=experts + 1).tolist()
    place = 0
    for expert, count in enumerate(counts):
        for tile, first in enumerate(range(place, place + count, rows), expert + place // rows):
            tiles[:, tile] = torch.tensor([expert, first, place + count])
        place += count
    return ExpertTiles(flat.argsort(stable=True).roll(-dead).int(), tiles, rows)


@triton.jit(do_not_specialize=["pairs", "most"])  # else each new value may compile again
def _sort(
    ids_ptr, order_ptr, tiles_ptr, pairs, most, ROWS: tl.constexpr, READ: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """One program an expert."""
    expert = tl.program_id(0)
    lane = tl.arange(0, READ)
    lower, own = tl.zeros([READ], tl.int32), tl.zeros([READ], tl.int32)
    for first in range(0, pairs, READ):
        ids = tl.load(ids_ptr + first + lane, mask=first + lane < pairs, other=-1)
        lower += ((ids >= 0) & (ids < expert)).to(tl.int32)
        own += (ids == expert).to(tl.int32)
    start, count = tl.sum(lower, 0), tl.sum(own, 0)

    begin, after = expert + start // ROWS, expert + 1 + (start + count) // ROWS
    if expert == tl.num_programs(0) - 1:
        after = most
    for first in range(begin, after, TILES):
        tile = first + tl.arange(0, TILES)
        place = start + (tile - begin) * ROWS
        real, inside = place < start + count, tile < after
        tl.store(tiles_ptr + tile, tl.where(real, expert, -1), mask=inside)
        tl.store(tiles_ptr + most + tile, tl.where(real, place, -1), mask=inside)
        tl.store(tiles_ptr + 2 * most + tile, tl.where(real, start + count, -1), mask=inside)

    if count > 0:
        for first in range(0, pairs, READ):
            ids = tl.load(ids_ptr + first + lane, mask=first + lane < pairs, other=-1)
            mine = (ids == expert).to(tl.int32)
            rank = tl.cumsum(mine, 0)
            tl.store(order_ptr + start + rank - 1, first + lane, mask=mine != 0)
            start += tl.sum(mine, 0)


def sort_by_expert(ids: torch.Tensor, experts: int, rows: int) -> ExpertTiles:
    """`sort_by_expert_reference` on a GPU, in one launch; deterministic (it counts, it never races)."""
    pairs = ids.numel()
    most = most_tiles(pairs, experts, rows)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(3, most, dtype=torch.int32, device=ids.device)
    read = min(READ, max(256, triton.next_power_of_2(pairs)))
    _sort[(experts,)](
        ids, order, tiles, pairs, most, ROWS=rows, READ=read, TILES=TILES, num_warps=4 if read <= 1024 else 8
    )  # fmt: skip
    return ExpertTiles(order, tiles, rows)

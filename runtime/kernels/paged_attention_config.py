"""What a program of attention's takes of queries and keys, by their sizes and how many programs there are."""

from __future__ import annotations

from typing import NamedTuple

from runtime.kernels.triton_import import triton

PROGRAMS = 200  # that keys are split for
MOST_SPLITS = 9
MANY = 384  # programs beside which fewer keys at a time are quicker, and if tiles have at most
DECODING = 64  # rows, more of them


class Tile(NamedTuple):
    """What a program takes: its height is rows times query heads."""

    rows: int
    keys: int  # a round
    values: int  # columns of them: where it is not all, scores are made as often as there are parts
    warps: int
    stages: int


def shares(programs: int, most: int) -> int:
    """Into how many shares keys are split that lie in at most `most` tiles of them, where without it there are
    `programs` programs."""
    return max(1, min(MOST_SPLITS, PROGRAMS // programs, most))


def tile_sizes(packed_p2: int, dim: int, element_size: int, tile_rows: int) -> Tile:
    """A tile is 64 or 128 lanes (row, head) high, or, where no tile of the batch has as many, at least 16: decode
    blocks and prefill chunks run alike, so that neither's bits depend on the other. float32, which has no matrix unit
    of full precision, keeps both sides at 32 so that a tile fits the registers. Of heads above 256 half the values are
    what 128 lanes have registers for; scores made twice are less than keys read twice."""
    values = max(16, triton.next_power_of_2(dim))
    if element_size == 4:
        lanes, keys, warps, stages = 32, (32 if dim <= 256 else 16), 8, 2
    elif dim <= 128:
        lanes, keys, warps, stages = 64, 64, 4, 3
    elif dim <= 256:
        lanes, keys, warps, stages = 128, 32, 8, 3
    else:
        lanes, keys, warps, stages, values = 128, 32, 8, 2, values // 2
    least = max(1, 16 // packed_p2)
    rows = min(max(least, lanes // packed_p2), max(least, triton.next_power_of_2(tile_rows)))
    return Tile(rows, keys, values, warps, stages)


def in_crowds(packed_p2: int, dim: int, element_size: int, tile_rows: int) -> Tile:
    """`tile_sizes` for many programs: they hide each other's waits, so that what counts is how often keys are read."""
    tile = tile_sizes(packed_p2, dim, element_size, tile_rows)
    if element_size != 2 or dim > 128 or tile.rows * packed_p2 != 64:
        return tile
    rows = min(2 * tile.rows, triton.next_power_of_2(tile_rows)) if tile_rows <= DECODING else tile.rows
    return tile._replace(rows=rows, keys=32, warps=4, stages=3)


class Weighing(NamedTuple):
    """What a program of attention's in two kernels takes that makes weights."""

    lanes: int  # rows times query heads
    keys: int  # a round
    depth: int  # numbers of queries and keys at a time
    warps: int
    stages: int


class Summing(NamedTuple):
    """What a program takes that sums the values of a `Weighing`'s lanes."""

    values: int  # columns of them
    keys: int  # at a time: a round, or a part of one
    warps: int
    stages: int


WEIGHING = Weighing(128, 256, 64, 8, 4)
SUMMING = Summing(128, 64, 8, 3)

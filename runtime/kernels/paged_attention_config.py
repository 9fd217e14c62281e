"""Tile sizes of the attention kernels, by the sizes of heads and the number of programs."""

from __future__ import annotations

from typing import NamedTuple

from runtime.kernels.triton_import import triton

SPLIT_PROGRAMS = 200  # keys are split until there are this many programs
MAX_SPLITS = 9
HIGH_OCCUPANCY_PROGRAMS = 384  # from this many programs, smaller KV blocks are faster,
DECODE_ROWS = 64  # and more rows per program if tiles have at most this many rows


class AttentionConfig(NamedTuple):
    """Tile sizes of one program, whose BLOCK_M is rows times query heads."""

    rows: int
    keys: int  # per KV block
    values: int  # value columns; if not all, the scores are computed once per part
    warps: int
    stages: int


def num_kv_splits(programs: int, max_splits: int) -> int:
    """Returns the number of splits of the keys (split-KV).

    Args:
        programs: number of programs without splits.
        max_splits: number of KV blocks.
    """
    return max(1, min(MAX_SPLITS, SPLIT_PROGRAMS // programs, max_splits))


def select_config(packed_p2: int, dim: int, element_size: int, tile_rows: int) -> AttentionConfig:
    """Selects the tile: BLOCK_M is 64 or 128, or at least 16 if no tile of the batch has as many rows.

    Decode blocks and prefill chunks use the same order of accumulation. float32 has no full-precision tensor cores and
    keeps both sides at 32, to fit the registers. With heads above 256, 128 rows leave registers for half of the value
    columns; computing scores twice is cheaper than reading keys twice.
    """
    values = max(16, triton.next_power_of_2(dim))
    if element_size == 4:
        block_m, keys, warps, stages = 32, (32 if dim <= 256 else 16), 8, 2
    elif dim <= 128:
        block_m, keys, warps, stages = 64, 64, 4, 3
    elif dim <= 256:
        block_m, keys, warps, stages = 128, 32, 8, 3
    else:
        block_m, keys, warps, stages, values = 128, 32, 8, 2, values // 2
    min_rows = max(1, 16 // packed_p2)
    rows = min(max(min_rows, block_m // packed_p2), max(min_rows, triton.next_power_of_2(tile_rows)))
    return AttentionConfig(rows, keys, values, warps, stages)


def select_config_high_occupancy(packed_p2: int, dim: int, element_size: int, tile_rows: int) -> AttentionConfig:
    """Config for high occupancy: other programs hide latency, so it minimizes re-reads of keys."""
    tile = select_config(packed_p2, dim, element_size, tile_rows)
    if element_size != 2 or dim > 128 or tile.rows * packed_p2 != 64:
        return tile
    rows = min(2 * tile.rows, triton.next_power_of_2(tile_rows)) if tile_rows <= DECODE_ROWS else tile.rows
    return tile._replace(rows=rows, keys=32, warps=4, stages=3)


class ScoresConfig(NamedTuple):
    """Tile sizes of the kernel of `two_pass_attention` that computes softmax weights."""

    block_m: int  # rows times query heads
    keys: int  # per KV block
    depth: int  # elements of queries and keys per iteration
    warps: int
    stages: int


class ValuesConfig(NamedTuple):
    """Tile sizes of the kernel of `two_pass_attention` that sums the values."""

    values: int  # value columns
    keys: int  # per iteration: a KV block, or a part of one
    warps: int
    stages: int


SCORES_CONFIG = ScoresConfig(128, 256, 64, 8, 4)
VALUES_CONFIG = ValuesConfig(128, 64, 8, 3)

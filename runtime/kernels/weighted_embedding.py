"""Soft embedding: the mean of an embedding table's rows under each of several distributions.

Sums stay in float32 until they are divided. Results of the kernel are batch-invariant: a split always has the same
number of ids, summed in ascending order, and the splits are summed in order.
"""

from __future__ import annotations

import torch

from runtime.kernels.common import tl, triton, wide
from runtime.kernels.linear import GemmTile

WIDE_CHUNK = 8192  # table rows converted to float32 at once on devices that cannot accumulate in float32
SPLIT_SIZE = 16384  # ids per split
TILE = 1024  # elements per program of the sum over splits


def soft_embedding_reference(
    probs: torch.Tensor, table: torch.Tensor, divisor: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the mean embedding under each distribution, [n, size] in the table's dtype.

    Args:
        probs: [n, ids] of any dtype, the distributions, times `divisor` if it is not None.
        table: [ids, size].
        divisor: [n]. Sums are divided by it before they are rounded.
    """
    probs = probs.to(table.dtype)
    if divisor is None:
        return probs @ table
    return (wide_sums(probs, table) / divisor[:, None]).to(table.dtype)


def wide_sums(weights: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Returns weights [n, ids] @ table [ids, size], both of one dtype, in float32 (float64 for float64).

    Sums are never rounded to a narrower dtype.
    """
    up = wide(table.dtype)
    if table.dtype == up:
        return weights @ table
    if weights.is_cuda:
        return torch.mm(weights, table, out_dtype=up)
    out = torch.zeros(len(weights), table.shape[1], dtype=up, device=table.device)
    for part, rows in zip(torch.split(weights, WIDE_CHUNK, 1), torch.split(table, WIDE_CHUNK), strict=True):
        out.addmm_(part.to(up), rows.to(up))
    return out


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _soft_embedding(
    probs_ptr, table_ptr, out_ptr, rows,
    IDS: tl.constexpr, SIZE: tl.constexpr, SPLIT_SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Computes COLUMNS of ROWS results over SPLIT_SIZE ids per program. The output is [splits, rows, SIZE]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    row_ok, column_ok = row < rows, column < SIZE
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for step in tl.range(0, SPLIT_SIZE, DEPTH, num_stages=STAGES):
        id = split * SPLIT_SIZE + step + tl.arange(0, DEPTH)
        table_at = table_ptr + id.to(tl.int64)[:, None] * SIZE + column[None, :]
        probs_at = probs_ptr + row.to(tl.int64)[:, None] * IDS + id[None, :]
        table = tl.load(table_at, mask=(id < IDS)[:, None] & column_ok[None, :], other=0.0)
        probs = tl.load(probs_at, mask=row_ok[:, None] & (id < IDS)[None, :], other=0.0)
        acc = tl.dot(tl.trans(table), tl.trans(probs), acc, input_precision="ieee")
    at = out_ptr + (split * rows + row).to(tl.int64)[None, :] * SIZE + column[:, None]
    tl.store(at, acc, mask=column_ok[:, None] & row_ok[None, :])


@triton.jit(do_not_specialize=["rows"])
def _sum_splits(
    parts_ptr, divisor_ptr, out_ptr, rows,
    SIZE: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr, DIVIDED: tl.constexpr,
):  # fmt: skip
    """Sums the splits of TILE elements of a row per program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    ok = column < SIZE
    acc = tl.zeros([TILE], tl.float32)
    for split in tl.static_range(SPLITS):
        acc += tl.load(parts_ptr + (split * rows.to(tl.int64) + row) * SIZE + column, mask=ok, other=0.0)
    if DIVIDED:
        acc = acc / tl.load(divisor_ptr + row).to(tl.float32)
    tl.store(out_ptr + row * SIZE + column, acc.to(out_ptr.dtype.element_ty), mask=ok)


def soft_embedding(probs: torch.Tensor, table: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
    """Computes `soft_embedding_reference` on a GPU, accumulated in float32.

    The table is contiguous, of float32, float16 or bfloat16.
    """
    probs = probs.to(table.dtype).contiguous()
    rows, (ids, size) = len(probs), table.shape
    config, splits = tile_sizes(rows, table.element_size()), triton.cdiv(ids, SPLIT_SIZE)
    parts = table.new_empty(splits, rows, size, dtype=torch.float32)
    split_size = SPLIT_SIZE if splits > 1 else triton.cdiv(ids, config.depth) * config.depth
    _soft_embedding[(triton.cdiv(rows, config.rows), triton.cdiv(size, config.columns), splits)](
        probs, table, parts, rows, IDS=ids, SIZE=size, SPLIT_SIZE=split_size, ROWS=config.rows, COLUMNS=config.columns,
        DEPTH=config.depth, STAGES=config.stages, num_warps=config.warps,
    )  # fmt: skip
    out = table.new_empty(rows, size)
    tile = min(TILE, triton.next_power_of_2(size))
    _sum_splits[(rows, triton.cdiv(size, tile))](
        parts, parts if divisor is None else divisor, out, rows, SIZE=size, SPLITS=splits, TILE=tile,
        DIVIDED=divisor is not None, num_warps=4,
    )  # fmt: skip
    return out


def tile_sizes(rows: int, element_size: int) -> GemmTile:
    """Selects the tile, whose columns are those of the table, the first operand (swap AB).

    All tiles of a dtype accumulate in the same order; float32 has no tensor cores.
    """
    if element_size == 4:
        return GemmTile(32, 32, 32, 2, 4)
    if rows <= 64:
        return GemmTile(32 if rows <= 32 else 64, 64, 64, 4, 4)
    return GemmTile(128, 128, 64, 3, 8)

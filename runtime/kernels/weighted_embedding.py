"""The mean of a table's rows under each of some distributions, or multiples of them: sums stay wide until divided.

The kernel's bits do not depend on how many distributions there are. A share is always as many ids, summed from the
first to the last; the shares are added up in their order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton

WIDENED = 8192  # ids whose rows are widened at a time where the device cannot accumulate wide by itself
SHARE = 16384  # ids
SLAB = 1024  # numbers of a mean that a program adds up


class Tile(NamedTuple):
    rows: int
    columns: int  # of the table, the operand that the matrix unit takes 64 rows of
    depth: int
    stages: int
    warps: int


def mean_reference(probs: torch.Tensor, table: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
    """[n, ids] of any dtype and [ids, size] -> [n, size] in the table's dtype. `divisor` [n]: the rows are that many
    times the distributions, as the table's dtype has room for; sums are divided by it before they are rounded."""
    probs = probs.to(table.dtype)
    if divisor is None:
        return probs @ table
    return (wide_sums(probs, table) / divisor[:, None]).to(table.dtype)


def wide_sums(weights: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """weights [n, ids] times [ids, size], of one dtype -> [n, size], float32 from the accumulator on; float64 for
    float64."""
    up = wide(table.dtype)
    if table.dtype == up:
        return weights @ table
    if weights.is_cuda:
        return torch.mm(weights, table, out_dtype=up)
    out = torch.zeros(len(weights), table.shape[1], dtype=up, device=table.device)
    for part, rows in zip(torch.split(weights, WIDENED, 1), torch.split(table, WIDENED), strict=True):
        out.addmm_(part.to(up), rows.to(up))
    return out


@triton.jit(do_not_specialize=["rows"])  # else each new value may compile again
def _mean(
    probs_ptr, table_ptr, out_ptr, rows,
    IDS: tl.constexpr, SIZE: tl.constexpr, SHARE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS of ROWS means, over SHARE of the ids; to [shares, rows, SIZE]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    share = tl.program_id(2)
    row_ok, column_ok = row < rows, column < SIZE
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for step in tl.range(0, SHARE, DEPTH, num_stages=STAGES):
        id = share * SHARE + step + tl.arange(0, DEPTH)
        table_at = table_ptr + id.to(tl.int64)[:, None] * SIZE + column[None, :]
        probs_at = probs_ptr + row.to(tl.int64)[:, None] * IDS + id[None, :]
        table = tl.load(table_at, mask=(id < IDS)[:, None] & column_ok[None, :], other=0.0)
        probs = tl.load(probs_at, mask=row_ok[:, None] & (id < IDS)[None, :], other=0.0)
        acc = tl.dot(tl.trans(table), tl.trans(probs), acc, input_precision="ieee")
    at = out_ptr + (share * rows + row).to(tl.int64)[None, :] * SIZE + column[:, None]
    tl.store(at, acc, mask=column_ok[:, None] & row_ok[None, :])


@triton.jit(do_not_specialize=["rows"])
def _add_up(
    parts_ptr, divisor_ptr, out_ptr, rows,
    SIZE: tl.constexpr, SHARES: tl.constexpr, SLAB: tl.constexpr, DIVIDED: tl.constexpr,
):  # fmt: skip
    """One program: SLAB numbers of a mean."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SLAB + tl.arange(0, SLAB)
    ok = column < SIZE
    acc = tl.zeros([SLAB], tl.float32)
    for share in tl.static_range(SHARES):
        acc += tl.load(parts_ptr + (share * rows.to(tl.int64) + row) * SIZE + column, mask=ok, other=0.0)
    if DIVIDED:
        acc = acc / tl.load(divisor_ptr + row).to(tl.float32)
    tl.store(out_ptr + row * SIZE + column, acc.to(out_ptr.dtype.element_ty), mask=ok)


def mean(probs: torch.Tensor, table: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
    """`mean_reference` on a GPU, for a contiguous table of float32, float16 or bfloat16, summed in float32."""
    probs = probs.to(table.dtype).contiguous()
    rows, (ids, size) = len(probs), table.shape
    how, shares = tile_sizes(rows, table.element_size()), triton.cdiv(ids, SHARE)
    parts = table.new_empty(shares, rows, size, dtype=torch.float32)
    share = SHARE if shares > 1 else triton.cdiv(ids, how.depth) * how.depth
    _mean[(triton.cdiv(rows, how.rows), triton.cdiv(size, how.columns), shares)](
        probs, table, parts, rows, IDS=ids, SIZE=size, SHARE=share, ROWS=how.rows, COLUMNS=how.columns,
        DEPTH=how.depth, STAGES=how.stages, num_warps=how.warps,
    )  # fmt: skip
    out = table.new_empty(rows, size)
    slab = min(SLAB, triton.next_power_of_2(size))
    _add_up[(rows, triton.cdiv(size, slab))](
        parts, parts if divisor is None else divisor, out, rows, SIZE=size, SHARES=shares, SLAB=slab,
        DIVIDED=divisor is not None, num_warps=4,
    )  # fmt: skip
    return out


def tile_sizes(rows: int, element_size: int) -> Tile:
    """Sums are alike in all tiles of a dtype; float32 has no matrix unit of full precision, and one tile."""
    if element_size == 4:
        return Tile(32, 32, 32, 2, 4)
    if rows <= 64:
        return Tile(32 if rows <= 32 else 64, 64, 64, 4, 4)
    return Tile(128, 128, 64, 3, 8)

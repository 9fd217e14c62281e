"""What adapters of low rank add to a product, for each row its own adapter's: grouped by the batch's tiles, each of
which is one request's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from runtime.kernels.triton_import import tl, triton

MOST_PARTS = 3  # of outputs
DEPTH, COLUMNS = 128, 128
ROWS = 32  # whatever the tiles, so that a row's bits do not depend on them
SPLIT = 512  # inputs that one program sums up
HELD = 1 << 16  # bytes of `down` that a program takes at a time; twice as many of `up`


@dataclass(frozen=True)
class LoraRows:
    """Which slot each row's adapter has. `tiles`, `tile_rows`: see ForwardBatch; a tile's rows have one adapter."""

    slots: torch.Tensor  # int32 [rows], -1: none
    tiles: torch.Tensor  # int32 [tiles, 3]
    tile_rows: int

    @cached_property
    def groups(self) -> list[tuple[int, torch.Tensor]]:
        """Each slot in use and its rows; asks the device."""
        return [(slot, (self.slots == slot).nonzero().flatten()) for slot in self.slots.unique().tolist() if slot >= 0]


class LoraKernel(Protocol):
    def __call__(
        self, out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, cuts: Sequence[int],
        rows: LoraRows,
    ) -> None: ...  # fmt: skip


def add_lora_reference(
    out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, cuts: Sequence[int], rows: LoraRows
) -> None:
    """In place: each row of `out` [rows, outputs] plus what its adapter makes of its row of `x` [rows, inputs].

    Args:
        down: [slots, parts * rank, inputs]; up: [slots, outputs, rank]. The outputs of part p are those from
            ``cuts[p]`` to ``cuts[p + 1]``; they are made of the p-th `rank` rows of `down`.
    """
    rank = up.shape[2]
    for slot, mine in rows.groups:
        whole = len(mine) == len(x)
        small = (x if whole else x[mine]) @ down[slot].t()
        parts = torch.split(small, rank, 1)
        made = [part @ up[slot, cuts[p] : cuts[p + 1]].t() for p, part in enumerate(parts)]
        change = made[0] if len(made) == 1 else torch.cat(made, 1)
        if whole:
            out += change
        else:
            out.index_add_(0, mine, change)


@triton.jit(do_not_specialize=["rows"])  # else each new value may compile again
def _shrink(
    x_ptr, down_ptr, slots_ptr, tiles_ptr, small_ptr, rows,
    INPUTS: tl.constexpr, RANK: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr,
    SPAN: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of a tile, one part, SPAN of the inputs."""
    tile, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    part, split = tl.program_id(1), tl.program_id(2)
    first = tl.load(tiles_ptr + tile * 3 + 1)
    last = first + tl.load(tiles_ptr + tile * 3 + 2)
    first += chunk * ROWS
    if first < last:
        slot = tl.load(slots_ptr + first).to(tl.int64)
        if slot >= 0:
            row, rank = first + tl.arange(0, ROWS), tl.arange(0, RANK)
            ok = row < last
            acc = tl.zeros([ROWS, RANK], tl.float32)
            x_at = x_ptr + row.to(tl.int64)[:, None] * INPUTS
            down_at = down_ptr + ((slot * PARTS + part) * RANK + rank)[:, None] * INPUTS
            for step in tl.range(0, SPAN, DEPTH, num_stages=STAGES):
                depth = split * SPAN + step + tl.arange(0, DEPTH)
                inside = (depth < INPUTS)[None, :]
                x = tl.load(x_at + depth[None, :], mask=ok[:, None] & inside, other=0.0)
                down = tl.load(down_at + depth[None, :], mask=inside, other=0.0)
                acc = tl.dot(x, tl.trans(down), acc, input_precision=PRECISION)
            at = ((split * rows + row).to(tl.int64) * PARTS + part) * RANK
            tl.store(small_ptr + at[:, None] + rank[None, :], acc, mask=ok[:, None])


@triton.jit(do_not_specialize=["rows"])
def _expand(
    out_ptr, small_ptr, up_ptr, slots_ptr, tiles_ptr, rows,
    OUTPUTS: tl.constexpr, RANK: tl.constexpr, PARTS: tl.constexpr, CUT1: tl.constexpr, CUT2: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS outputs of ROWS rows of a tile."""
    tile, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    first = tl.load(tiles_ptr + tile * 3 + 1)
    last = first + tl.load(tiles_ptr + tile * 3 + 2)
    first += chunk * ROWS
    if first < last:
        slot = tl.load(slots_ptr + first).to(tl.int64)
        if slot >= 0:
            row, rank = first + tl.arange(0, ROWS), tl.arange(0, RANK)
            ok, start = row < last, tl.program_id(1) * COLUMNS
            column = start + tl.arange(0, COLUMNS)
            acc = tl.zeros([ROWS, COLUMNS], tl.float32)
            for part in tl.static_range(PARTS):
                begin = 0 if part == 0 else (CUT1 if part == 1 else CUT2)
                end = OUTPUTS if part == PARTS - 1 else (CUT1 if part == 0 else CUT2)
                if (start < end) & (start + COLUMNS > begin):
                    small = tl.zeros([ROWS, RANK], tl.float32)
                    for split in tl.static_range(SPLITS):
                        at = ((split * rows + row).to(tl.int64) * PARTS + part) * RANK
                        small += tl.load(small_ptr + at[:, None] + rank[None, :], mask=ok[:, None], other=0.0)
                    mine = (column >= begin) & (column < end)
                    up_at = up_ptr + (slot * OUTPUTS + column)[:, None] * RANK + rank[None, :]
                    up = tl.load(up_at, mask=mine[:, None], other=0.0)
                    acc = tl.dot(small.to(up.dtype), tl.trans(up), acc, input_precision=PRECISION)
            at = out_ptr + row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
            inside = ok[:, None] & (column < OUTPUTS)[None, :]
            tl.store(at, (tl.load(at, mask=inside, other=0.0) + acc).to(out_ptr.dtype.element_ty), mask=inside)


def tile(rank: int, element_size: int) -> tuple[int, int]:
    """Inputs and outputs that a program takes at a time: fewer of a large rank, as there is no room for more."""
    return min(DEPTH, HELD // (rank * element_size)), min(COLUMNS, 2 * HELD // (rank * element_size))


def add_lora(
    out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, cuts: Sequence[int], rows: LoraRows
) -> None:
    """``add_lora_reference`` for contiguous ones and at most `MOST_PARTS` parts; no host synchronisation,
    deterministic, and a row's result does not depend on the others."""
    (count, outputs), inputs, rank, parts = out.shape, x.shape[1], up.shape[2], len(cuts) - 1
    if parts > MOST_PARTS:
        raise AssertionError(f"{parts} parts of a product, which the kernel has no room for")
    chunks = triton.cdiv(rows.tile_rows, ROWS)
    splits = max(1, min(8, inputs // SPLIT))
    span = triton.cdiv(triton.cdiv(inputs, splits), DEPTH) * DEPTH
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    depth, columns = tile(rank, x.element_size())
    small = torch.empty(splits, count, parts, rank, dtype=torch.float32, device=x.device)
    programs = len(rows.tiles) * chunks
    _shrink[(programs, parts, splits)](
        x, down, rows.slots, rows.tiles, small, count, INPUTS=inputs, RANK=rank, PARTS=parts, ROWS=ROWS,
        CHUNKS=chunks, SPAN=span, DEPTH=depth, STAGES=3, PRECISION=precision, num_warps=4,
    )  # fmt: skip
    _expand[(programs, triton.cdiv(outputs, columns))](
        out, small, up, rows.slots, rows.tiles, count, OUTPUTS=outputs, RANK=rank, PARTS=parts,
        CUT1=cuts[1] if parts > 1 else 0, CUT2=cuts[2] if parts > 2 else 0, SPLITS=splits, ROWS=ROWS, CHUNKS=chunks,
        COLUMNS=columns, PRECISION=precision, num_warps=4,
    )  # fmt: skip

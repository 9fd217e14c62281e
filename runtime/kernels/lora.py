"""LoRA: adds each row's adapter to the output of a GEMM. Rows are grouped by the query tiles, each of one request.

The structure is that of Punica (arXiv 2310.18547): a shrink kernel to the rank, then an expand kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from runtime.kernels.common import tl, triton

MAX_PARTS = 3  # parts of the outputs with separate `down` matrices
DEPTH, COLUMNS = 128, 128
ROWS = 32  # fixed, so that the bits of a row do not depend on the tiles
SPLIT = 512  # inputs per program of the shrink kernel
SHARED_BYTES = 1 << 16  # bytes of `down` per iteration; twice as many of `up`


@dataclass(frozen=True)
class LoRARows:
    """The adapter slot of each row. `tiles`, `tile_rows`: see ForwardBatch; all rows of a tile have the same slot."""

    slots: torch.Tensor  # int32 [rows], -1: none
    tiles: torch.Tensor  # int32 [tiles, 3]
    tile_rows: int

    @cached_property
    def groups(self) -> list[tuple[int, torch.Tensor]]:
        """Returns each slot in use with its rows. Synchronizes the device."""
        return [(slot, (self.slots == slot).nonzero().flatten()) for slot in self.slots.unique().tolist() if slot >= 0]


LoRAKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int], LoRARows], None]


def add_lora_reference(
    out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, part_starts: Sequence[int], rows: LoRARows
) -> None:
    """Adds up(down(x)) of each row's adapter to `out` in place.

    Args:
        out: [rows, outputs]; x: [rows, inputs].
        down: [slots, parts * rank, inputs]; up: [slots, outputs, rank].
        part_starts: the outputs of part p are those from ``part_starts[p]`` to ``part_starts[p + 1]``; they use the
            p-th `rank` rows of `down`.
    """
    rank = up.shape[2]
    for slot, slot_rows in rows.groups:
        all_rows = len(slot_rows) == len(x)
        shrunk = (x if all_rows else x[slot_rows]) @ down[slot].t()
        parts = torch.split(shrunk, rank, 1)
        deltas = [part @ up[slot, part_starts[p] : part_starts[p + 1]].t() for p, part in enumerate(parts)]
        delta = deltas[0] if len(deltas) == 1 else torch.cat(deltas, 1)
        if all_rows:
            out += delta
        else:
            out.index_add_(0, slot_rows, delta)


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _shrink(
    x_ptr, down_ptr, slots_ptr, tiles_ptr, shrunk_ptr, rows,
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
            tl.store(shrunk_ptr + at[:, None] + rank[None, :], acc, mask=ok[:, None])


@triton.jit(do_not_specialize=["rows"])
def _expand(
    out_ptr, shrunk_ptr, up_ptr, slots_ptr, tiles_ptr, rows,
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
                    shrunk = tl.zeros([ROWS, RANK], tl.float32)
                    for split in tl.static_range(SPLITS):
                        at = ((split * rows + row).to(tl.int64) * PARTS + part) * RANK
                        shrunk += tl.load(shrunk_ptr + at[:, None] + rank[None, :], mask=ok[:, None], other=0.0)
                    slot_rows = (column >= begin) & (column < end)
                    up_at = up_ptr + (slot * OUTPUTS + column)[:, None] * RANK + rank[None, :]
                    up = tl.load(up_at, mask=slot_rows[:, None], other=0.0)
                    acc = tl.dot(shrunk.to(up.dtype), tl.trans(up), acc, input_precision=PRECISION)
            at = out_ptr + row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
            inside = ok[:, None] & (column < OUTPUTS)[None, :]
            tl.store(at, (tl.load(at, mask=inside, other=0.0) + acc).to(out_ptr.dtype.element_ty), mask=inside)


def tile_sizes(rank: int, element_size: int) -> tuple[int, int]:
    """Returns inputs and outputs per iteration: fewer with a large rank, to fit shared memory."""
    return min(DEPTH, SHARED_BYTES // (rank * element_size)), min(COLUMNS, 2 * SHARED_BYTES // (rank * element_size))


def add_lora(
    out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, part_starts: Sequence[int], rows: LoRARows
) -> None:
    """``add_lora_reference`` for contiguous tensors and at most `MAX_PARTS` parts.

    Deterministic, no host sync; the bits of a row do not depend on the others.
    """
    (count, outputs), inputs, rank, parts = out.shape, x.shape[1], up.shape[2], len(part_starts) - 1
    if parts > MAX_PARTS:
        raise AssertionError(f"{parts} parts of a product, but the kernel supports at most {MAX_PARTS}")
    chunks = triton.cdiv(rows.tile_rows, ROWS)
    splits = max(1, min(8, inputs // SPLIT))
    span = triton.cdiv(triton.cdiv(inputs, splits), DEPTH) * DEPTH
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    depth, columns = tile_sizes(rank, x.element_size())
    shrunk = torch.empty(splits, count, parts, rank, dtype=torch.float32, device=x.device)
    programs = len(rows.tiles) * chunks
    _shrink[(programs, parts, splits)](
        x, down, rows.slots, rows.tiles, shrunk, count, INPUTS=inputs, RANK=rank, PARTS=parts, ROWS=ROWS,
        CHUNKS=chunks, SPAN=span, DEPTH=depth, STAGES=3, PRECISION=precision, num_warps=4,
    )  # fmt: skip
    _expand[(programs, triton.cdiv(outputs, columns))](
        out, shrunk, up, rows.slots, rows.tiles, count, OUTPUTS=outputs, RANK=rank, PARTS=parts,
        CUT1=part_starts[1] if parts > 1 else 0, CUT2=part_starts[2] if parts > 2 else 0, SPLITS=splits, ROWS=ROWS,
        CHUNKS=chunks, COLUMNS=columns, PRECISION=precision, num_warps=4,
    )  # fmt: skip

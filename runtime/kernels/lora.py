"""LoRA: adds each row's adapter to the output of a GEMM. Rows are grouped by the query tiles, each of one request.

The structure is that of Punica (arXiv 2310.18547): a shrink kernel to the rank, then an expand kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from runtime.kernels.common import tl, triton

MAX_PARTS = 3  # parts of the outputs with separate `lora_a` matrices
BLOCK_K, BLOCK_N = 128, 128
BLOCK_M = 32  # fixed, so that the bits of a row do not depend on the tiles
SPLIT = 512  # inputs per program of the shrink kernel
SHARED_BYTES = 1 << 16  # bytes of `lora_a` per iteration; twice as many of `lora_b`


@dataclass(frozen=True)
class LoRABatch:
    """The adapter slot of each row, in the terms of ForwardBatch. All rows of a query tile have the same slot."""

    lora_slots: torch.Tensor  # int32 [rows], -1: none
    query_tiles: torch.Tensor  # int32 [tiles, 3]
    tile_rows: int

    @cached_property
    def rows_by_slot(self) -> list[tuple[int, torch.Tensor]]:
        """Returns each slot in use with its rows. Synchronizes the device."""
        slots = self.lora_slots.unique().tolist()
        return [(slot, (self.lora_slots == slot).nonzero().flatten()) for slot in slots if slot >= 0]


LoRAKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int], LoRABatch], None]


def add_lora_reference(
    out: torch.Tensor, x: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, part_starts: Sequence[int],
    batch: LoRABatch,
) -> None:  # fmt: skip
    """Adds lora_b(lora_a(x)) of each row's adapter to `out` in place.

    Args:
        out: [rows, outputs]; x: [rows, inputs].
        lora_a: [slots, parts * rank, inputs]; lora_b: [slots, outputs, rank].
        part_starts: the outputs of part p are those from ``part_starts[p]`` to ``part_starts[p + 1]``; they use the
            p-th `rank` rows of `lora_a`.
    """
    rank = lora_b.shape[2]
    for slot, rows in batch.rows_by_slot:
        all_rows = len(rows) == len(x)
        shrunk = (x if all_rows else x[rows]) @ lora_a[slot].t()
        parts = torch.split(shrunk, rank, 1)
        deltas = [part @ lora_b[slot, part_starts[p] : part_starts[p + 1]].t() for p, part in enumerate(parts)]
        delta = deltas[0] if len(deltas) == 1 else torch.cat(deltas, 1)
        if all_rows:
            out += delta
        else:
            out.index_add_(0, rows, delta)


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _shrink(
    x_ptr, lora_a_ptr, lora_slots_ptr, tiles_ptr, shrunk_ptr, rows,
    INPUTS: tl.constexpr, RANK: tl.constexpr, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, CHUNKS: tl.constexpr,
    SPAN: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes BLOCK_M rows of a tile, for one part and SPAN of the inputs, per program."""
    tile, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    part, split = tl.program_id(1), tl.program_id(2)
    first = tl.load(tiles_ptr + tile * 3 + 1)
    last = first + tl.load(tiles_ptr + tile * 3 + 2)
    first += chunk * BLOCK_M
    if first < last:
        slot = tl.load(lora_slots_ptr + first).to(tl.int64)
        if slot >= 0:
            row, rank = first + tl.arange(0, BLOCK_M), tl.arange(0, RANK)
            row_mask = row < last
            acc = tl.zeros([BLOCK_M, RANK], tl.float32)
            x_at = x_ptr + row.to(tl.int64)[:, None] * INPUTS
            lora_a_at = lora_a_ptr + ((slot * PARTS + part) * RANK + rank)[:, None] * INPUTS
            for step in tl.range(0, SPAN, BLOCK_K, num_stages=STAGES):
                offs_k = split * SPAN + step + tl.arange(0, BLOCK_K)
                k_mask = (offs_k < INPUTS)[None, :]
                x = tl.load(x_at + offs_k[None, :], mask=row_mask[:, None] & k_mask, other=0.0)
                lora_a = tl.load(lora_a_at + offs_k[None, :], mask=k_mask, other=0.0)
                acc = tl.dot(x, tl.trans(lora_a), acc, input_precision=PRECISION)
            at = ((split * rows + row).to(tl.int64) * PARTS + part) * RANK
            tl.store(shrunk_ptr + at[:, None] + rank[None, :], acc, mask=row_mask[:, None])


@triton.jit(do_not_specialize=["rows"])
def _expand(
    out_ptr, shrunk_ptr, lora_b_ptr, lora_slots_ptr, tiles_ptr, rows,
    OUTPUTS: tl.constexpr, RANK: tl.constexpr, PARTS: tl.constexpr, CUT1: tl.constexpr, CUT2: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_M: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes BLOCK_N outputs of BLOCK_M rows of a tile per program."""
    tile, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    first = tl.load(tiles_ptr + tile * 3 + 1)
    last = first + tl.load(tiles_ptr + tile * 3 + 2)
    first += chunk * BLOCK_M
    if first < last:
        slot = tl.load(lora_slots_ptr + first).to(tl.int64)
        if slot >= 0:
            row, rank = first + tl.arange(0, BLOCK_M), tl.arange(0, RANK)
            row_mask, start = row < last, tl.program_id(1) * BLOCK_N
            column = start + tl.arange(0, BLOCK_N)
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            for part in tl.static_range(PARTS):
                begin = 0 if part == 0 else (CUT1 if part == 1 else CUT2)
                end = OUTPUTS if part == PARTS - 1 else (CUT1 if part == 0 else CUT2)
                if (start < end) & (start + BLOCK_N > begin):
                    shrunk = tl.zeros([BLOCK_M, RANK], tl.float32)
                    for split in tl.static_range(SPLITS):
                        at = ((split * rows + row).to(tl.int64) * PARTS + part) * RANK
                        shrunk += tl.load(shrunk_ptr + at[:, None] + rank[None, :], mask=row_mask[:, None], other=0.0)
                    part_mask = (column >= begin) & (column < end)
                    lora_b_at = lora_b_ptr + (slot * OUTPUTS + column)[:, None] * RANK + rank[None, :]
                    lora_b = tl.load(lora_b_at, mask=part_mask[:, None], other=0.0)
                    acc = tl.dot(shrunk.to(lora_b.dtype), tl.trans(lora_b), acc, input_precision=PRECISION)
            at = out_ptr + row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
            mask = row_mask[:, None] & (column < OUTPUTS)[None, :]
            tl.store(at, (tl.load(at, mask=mask, other=0.0) + acc).to(out_ptr.dtype.element_ty), mask=mask)


def tile_sizes(rank: int, element_size: int) -> tuple[int, int]:
    """Returns BLOCK_K inputs and BLOCK_N outputs per iteration: fewer with a large rank, to fit shared memory."""
    return min(BLOCK_K, SHARED_BYTES // (rank * element_size)), min(BLOCK_N, 2 * SHARED_BYTES // (rank * element_size))


def add_lora(
    out: torch.Tensor, x: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, part_starts: Sequence[int],
    batch: LoRABatch,
) -> None:  # fmt: skip
    """Computes ``add_lora_reference`` for contiguous tensors and at most `MAX_PARTS` parts.

    Deterministic, no host sync; the bits of a row do not depend on the others.
    """
    (count, outputs), inputs, rank, parts = out.shape, x.shape[1], lora_b.shape[2], len(part_starts) - 1
    if parts > MAX_PARTS:
        raise AssertionError(f"{parts} parts of a weight, but the kernel supports at most {MAX_PARTS}")
    chunks = triton.cdiv(batch.tile_rows, BLOCK_M)
    splits = max(1, min(8, inputs // SPLIT))
    span = triton.cdiv(triton.cdiv(inputs, splits), BLOCK_K) * BLOCK_K
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    block_k, block_n = tile_sizes(rank, x.element_size())
    shrunk = torch.empty(splits, count, parts, rank, dtype=torch.float32, device=x.device)
    programs = len(batch.query_tiles) * chunks
    _shrink[(programs, parts, splits)](
        x, lora_a, batch.lora_slots, batch.query_tiles, shrunk, count, INPUTS=inputs, RANK=rank, PARTS=parts,
        BLOCK_M=BLOCK_M, CHUNKS=chunks, SPAN=span, BLOCK_K=block_k, STAGES=3, PRECISION=precision, num_warps=4,
    )  # fmt: skip
    _expand[(programs, triton.cdiv(outputs, block_n))](
        out, shrunk, lora_b, batch.lora_slots, batch.query_tiles, count, OUTPUTS=outputs, RANK=rank, PARTS=parts,
        CUT1=part_starts[1] if parts > 1 else 0, CUT2=part_starts[2] if parts > 2 else 0, SPLITS=splits,
        BLOCK_M=BLOCK_M, CHUNKS=chunks, BLOCK_N=block_n, PRECISION=precision, num_warps=4,
    )  # fmt: skip

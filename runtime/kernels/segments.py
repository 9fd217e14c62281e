"""Expands the segments of a forward to its rows. A segment is a range of consecutive positions of one request.

The host sends a few numbers per request. The first launch of a forward computes from them what every row needs. So the
inputs of a step are small, and the host can choose between two steps in a few microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from runtime.kernels.common import tl, triton

Ints32 = npt.NDArray[np.int32]
PADDING = -1  # `start` of the segment that pads a captured forward
REMAINDER = 1 << 24  # `count` of that segment: all rows that are left. Segments behind it have none.
NO_LIMIT = 2**31 - 1
ROWS = 256  # rows per iteration of the kernel


class Segment(NamedTuple):
    """A segment: the columns of the array int32 [segments, len(Segment._fields)].

    A row at position `a` attends to the keys up to ``a + 1`` if ``a < causal_end``, and otherwise to those up to the
    end of its block (docs/research/decoding-rules.md#visible-keys). Blocks have `block_size` positions and begin at
    `origin`; a row before `origin` attends to the keys up to there.

    Attributes:
        slot: row of the page table.
        start: first position; PADDING for the segment that fills up a captured forward. Its rows store no K/V.
        count: number of positions; REMAINDER for that segment.
        origin, block_size, causal_end: see above.
        visible_limit: no row attends to keys from this position on.
        window_end: rows behind it have the sliding window of the row at it.
        editable_start: rows from this position on may still change.
        lora_slot: -1: base model.
        first_token: entry of the token of the first row in the table of tokens; the others follow it. -1: the table has
            the tokens of `slot`.
        conditioned: rows from `editable_start` on, which are one block, have the self-conditioning of `slot`. Each slot
            has so many of them. 0: they have none.
    """

    slot: int
    start: int
    count: int
    origin: int
    block_size: int
    causal_end: int
    visible_limit: int = NO_LIMIT
    window_end: int = NO_LIMIT
    editable_start: int = 0
    lora_slot: int = -1
    first_token: int = -1
    conditioned: int = 0


FIELDS = len(Segment._fields)
(
    SLOT,
    START,
    COUNT,
    ORIGIN,
    BLOCK_SIZE,
    CAUSAL_END,
    VISIBLE_LIMIT,
    WINDOW_END,
    EDITABLE_START,
    LORA_SLOT,
    FIRST_TOKEN,
    CONDITIONED,
) = range(FIELDS)


class ForwardRows(NamedTuple):
    """The rows of a forward, as in ``kernels.forward_batch.ForwardBatch``.

    Attributes:
        conditioning: int64 [rows], index of the self-conditioning of each row, where each slot has a block of them; -1:
            the row has none.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    visible_end: torch.Tensor
    window_pos: torch.Tensor
    is_editable: torch.Tensor
    lora_slots: torch.Tensor
    conditioning: torch.Tensor
    query_tiles: torch.Tensor


class RowTables(NamedTuple):
    """Where rows find their tokens and pages."""

    tokens: torch.Tensor  # int32 [entries]: padding, then `max_len` entries per slot, then others
    max_len: int
    pages: torch.Tensor  # int32 [slots, pages]
    page_size: int


def first_rows(segments: Ints32) -> npt.NDArray[np.int64]:
    """Returns the first row of each segment, int64 [segments]. They follow each other."""
    counts = segments[:, COUNT].astype(np.int64)
    return counts.cumsum() - counts


def visible_end_of(segments: Ints32, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the end of the visible keys at one position of each segment, int64 [segments]."""
    _, _, _, origin, size, causal_end, limit, *_ = segments.T.astype(np.int64)
    block_end = origin + np.maximum((positions - origin) // size + 1, 0) * size
    found: npt.NDArray[np.int64] = np.where(positions < causal_end, positions + 1, block_end)
    return np.minimum(found, limit)


def expand_segments_reference(
    segments: torch.Tensor, tables: RowTables, rows: int, tiles: int, tile_rows: int
) -> ForwardRows:
    """Returns the rows of a forward.

    Args:
        segments: int32 [n, FIELDS]. Those after one of padding are not read.
        rows, tiles: numbers of rows and tiles. Tiles after those of the segments have no rows.
        tile_rows: maximum rows of a tile.
    """
    wide = segments.long()
    counts = wide[:, COUNT].clamp(max=rows)
    counts = counts.minimum(rows - (counts.cumsum(0) - counts)).clamp(min=0)
    owner = torch.repeat_interleave(torch.arange(len(wide), device=wide.device), counts, output_size=rows)
    own, first_row = wide[owner], counts.cumsum(0) - counts
    offset = torch.arange(rows, device=wide.device) - first_row[owner]
    padding = own[:, START] == PADDING
    position = torch.where(padding, 0, own[:, START] + offset)
    pages = tables.pages[own[:, SLOT], position // tables.page_size].long()
    origin, size = own[:, ORIGIN], own[:, BLOCK_SIZE]
    block_end = origin + torch.where(position < origin, 0, (position - origin) // size.clamp(min=1) + 1) * size
    visible_end = torch.where(position < own[:, CAUSAL_END], position + 1, block_end).minimum(own[:, VISIBLE_LIMIT])
    is_editable = ~padding & (position >= own[:, EDITABLE_START])
    conditioning = own[:, SLOT] * own[:, CONDITIONED] + position - own[:, EDITABLE_START]
    own_entry = 1 + own[:, SLOT] * tables.max_len + own[:, START]
    entry = torch.where(own[:, FIRST_TOKEN] < 0, own_entry, own[:, FIRST_TOKEN]) + offset
    pieces = -(-counts // tile_rows)
    tile_owner = torch.repeat_interleave(torch.arange(len(wide), device=wide.device), pieces)
    done = (torch.arange(len(tile_owner), device=wide.device) - (pieces.cumsum(0) - pieces)[tile_owner]) * tile_rows
    query_tiles = torch.zeros(tiles, 3, dtype=torch.int32, device=wide.device)
    query_tiles[: len(tile_owner)] = torch.stack(
        [
            wide[tile_owner, SLOT],
            first_row[tile_owner] + done,
            (counts[tile_owner] - done).clamp(max=tile_rows),
        ],
        dim=1,
    ).int()
    return ForwardRows(
        tokens=tables.tokens[torch.where(padding, 0, entry)].long(),
        positions=position,
        slots=torch.where(padding, -1, pages * tables.page_size + position % tables.page_size),
        visible_end=torch.where(padding, 1, visible_end).int(),
        window_pos=torch.minimum(position, own[:, WINDOW_END]),
        is_editable=is_editable,
        lora_slots=torch.where(padding, -1, own[:, LORA_SLOT]).int(),
        conditioning=torch.where(is_editable & (own[:, CONDITIONED] > 0), conditioning, -1),
        query_tiles=query_tiles,
    )


@triton.jit(do_not_specialize=["tiles", "pages_stride", "max_len", "tile_rows", "rows"])
def _expand_segments(
    segments_ptr, token_table_ptr, pages_ptr, tokens_ptr, positions_ptr, slots_ptr, visible_end_ptr, window_pos_ptr,
    is_editable_ptr, lora_slots_ptr, conditioning_ptr, tiles_ptr, rows, tiles, pages_stride, max_len, tile_rows,
    PAGE_SIZE: tl.constexpr, FIELDS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Expands one segment per program."""
    at = segments_ptr + tl.program_id(0) * FIELDS
    slot, start, count = tl.load(at), tl.load(at + 1), tl.load(at + 2)
    origin, block_size, causal_end = tl.load(at + 3), tl.load(at + 4), tl.load(at + 5)
    visible_limit, window_end, editable_start = tl.load(at + 6), tl.load(at + 7), tl.load(at + 8)
    lora_slot, first_token, conditioned = tl.load(at + 9), tl.load(at + 10), tl.load(at + 11)
    first_row, first_tile = 0, 0
    for begin in range(0, tl.program_id(0), ROWS):
        before = begin + tl.arange(0, ROWS)
        counts = tl.load(segments_ptr + before * FIELDS + 2, mask=before < tl.program_id(0), other=0)
        counts = tl.minimum(counts, rows)
        first_row += tl.sum(counts, 0)
        first_tile += tl.sum(tl.cdiv(counts, tile_rows), 0)
    count = tl.minimum(count, rows - first_row)  # below 1 behind the padding
    padding = start < 0
    own_entry = 1 + slot.to(tl.int64) * max_len + start
    first_entry = tl.where(first_token < 0, own_entry, first_token.to(tl.int64))
    for begin in range(0, count, ROWS):
        offset = begin + tl.arange(0, ROWS)
        inside = offset < count
        position = tl.where(padding, 0, start + offset)
        page = tl.load(pages_ptr + slot.to(tl.int64) * pages_stride + position // PAGE_SIZE, mask=inside, other=0)
        token = tl.load(token_table_ptr + tl.where(padding, 0, first_entry + offset), mask=inside, other=0)
        after = position - origin
        block_end = origin + tl.where(after < 0, 0, after // tl.maximum(block_size, 1) + 1) * block_size
        visible_end = tl.minimum(tl.where(position < causal_end, position + 1, block_end), visible_limit)
        kv_slot = page.to(tl.int64) * PAGE_SIZE + position % PAGE_SIZE
        row = first_row + offset
        tl.store(tokens_ptr + row, token.to(tl.int64), mask=inside)
        tl.store(positions_ptr + row, position.to(tl.int64), mask=inside)
        tl.store(slots_ptr + row, tl.where(padding, -1, kv_slot), mask=inside)
        tl.store(visible_end_ptr + row, tl.where(padding, 1, visible_end), mask=inside)
        tl.store(window_pos_ptr + row, tl.minimum(position, window_end).to(tl.int64), mask=inside)
        is_editable = (padding == 0) & (position >= editable_start)
        conditioning = slot.to(tl.int64) * conditioned + position - editable_start
        tl.store(is_editable_ptr + row, is_editable, mask=inside)
        tl.store(conditioning_ptr + row, tl.where(is_editable & (conditioned > 0), conditioning, -1), mask=inside)
        tl.store(lora_slots_ptr + row, tl.where(padding, -1, lora_slot + offset * 0), mask=inside)
    last = tl.cdiv(count, tile_rows)
    end = tl.where(padding, tiles - first_tile, last)  # padding also clears the tiles after its own
    for begin in range(0, end, ROWS):
        tile = begin + tl.arange(0, ROWS)
        used, inside = tile < last, tile < end
        out = tiles_ptr + (first_tile + tile) * 3
        tl.store(out, tl.where(used, slot, 0), mask=inside)
        tl.store(out + 1, tl.where(used, first_row + tile * tile_rows, 0), mask=inside)
        tl.store(out + 2, tl.where(used, tl.minimum(count - tile * tile_rows, tile_rows), 0), mask=inside)


def expand_segments(segments: torch.Tensor, tables: RowTables, rows: int, tiles: int, tile_rows: int) -> ForwardRows:
    """Computes `expand_segments_reference` on a GPU."""
    device = segments.device
    stride = -(-rows // 4) * 4  # each array begins at a multiple of 16 bytes, as kernels were compiled
    wide = torch.empty(5, stride, dtype=torch.int64, device=device)[:, :rows]
    narrow = torch.empty(2, stride, dtype=torch.int32, device=device)[:, :rows]
    is_editable = torch.empty(rows, dtype=torch.bool, device=device)
    query_tiles = torch.empty(tiles, 3, dtype=torch.int32, device=device)
    found = ForwardRows(wide[0], wide[1], wide[2], narrow[0], wide[3], is_editable, narrow[1], wide[4], query_tiles)
    _expand_segments[(len(segments),)](
        segments, tables.tokens, tables.pages, found.tokens, found.positions, found.slots, found.visible_end,
        found.window_pos, found.is_editable, found.lora_slots, found.conditioning, query_tiles, rows, tiles,
        tables.pages.stride(0), tables.max_len, tile_rows, PAGE_SIZE=tables.page_size, FIELDS=FIELDS, ROWS=ROWS,
        num_warps=4,
    )  # fmt: skip
    return found

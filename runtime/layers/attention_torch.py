"""Paged block-diffusion attention in torch: any device, any dtype, float64 too.

A sequence's rows are cut into tiles, and tiles of like size are padded to one shape and computed together, so that 32
short requests are a few calls and a long prompt never makes a square of scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from runtime.layers.attention import AttentionShape

if TYPE_CHECKING:  # models import layers
    from runtime.models.base import ForwardBatch

TILE_ROWS = 256
PADDING_LIMIT = 1.5  # score cells computed for each one needed, within a group
GROUP_CELLS = 1 << 22  # and the most cells of a group of several tiles, which bounds its masks


@dataclass(frozen=True)
class _Tile:
    seq: int
    row: int  # first row in the batch
    rows: int
    position: int  # of the first row
    first_key: int
    keys: int


@dataclass(frozen=True)
class _Group:
    """n tiles padded to R rows and K keys. Padding repeats a tile's own last row and key: never another's, never a
    slot nothing wrote."""

    rows: torch.Tensor  # int64 [n, R], row of q
    slots: torch.Tensor  # int64 [n, K]
    mask: torch.Tensor | None  # [n, 1, group * R, K], 0 or -inf; None: all visible
    taken: torch.Tensor  # int64 [m], the real ones among the n * R results
    written: torch.Tensor  # int64 [m], the rows of the output they are


class TorchAttention:
    """See ``runtime.layers.attention.Attention``. Planning reads sizes on the host (it synchronises a GPU)."""

    def __init__(self, shape: AttentionShape, dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype

    def plan(self, batch: ForwardBatch, window: int | None = None) -> list[_Group]:
        groups: list[list[_Tile]] = []
        cells = 0
        for tile in sorted(_tiles(batch, window), key=lambda t: (t.rows, t.keys), reverse=True):
            if groups:
                first = groups[-1][0]  # the largest in rows; keys may be larger later where rows are fewer
                keys = max(max(t.keys for t in groups[-1]), tile.keys)
                padded = first.rows * keys * (len(groups[-1]) + 1)
                if padded <= min(GROUP_CELLS, PADDING_LIMIT * (cells + tile.rows * tile.keys)):
                    groups[-1].append(tile)
                    cells += tile.rows * tile.keys
                    continue
            groups.append([tile])
            cells = tile.rows * tile.keys
        return [self._group(batch, tiles, window) for tiles in groups]

    def attend(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, plan: list[_Group]) -> torch.Tensor:
        kv_heads, group, dim = self.shape.kv_heads, self.shape.group, self.shape.head_dim
        keys, values = k_cache.view(-1, kv_heads, dim), v_cache.view(-1, kv_heads, dim)
        out = torch.empty_like(q)
        for part in plan:
            n, rows = part.rows.shape
            # the query heads of one key head become rows of one product: [n, kv_heads, group * rows, dim]
            queries = q[part.rows].view(n, rows, kv_heads, group, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
            k, v = keys[part.slots].transpose(1, 2), values[part.slots].transpose(1, 2)
            result = F.scaled_dot_product_attention(
                queries, k.to(q.dtype), v.to(q.dtype), attn_mask=part.mask, scale=self.shape.scale
            )
            result = result.unflatten(2, (group, rows)).permute(0, 3, 1, 2, 4).reshape(n * rows, -1, dim)
            out[part.written] = result[part.taken]
        return out

    def _group(self, batch: ForwardBatch, tiles: list[_Tile], window: int | None) -> _Group:
        device = batch.tokens.device
        seq, row, rows, position, first_key, keys = torch.tensor(
            [(t.seq, t.row, t.rows, t.position, t.first_key, t.keys) for t in tiles], device=device
        ).T.unsqueeze(-1)  # each [n, 1]
        row_span = torch.arange(max(t.rows for t in tiles), device=device)
        key_span = torch.arange(max(t.keys for t in tiles), device=device)
        offsets = torch.minimum(row_span, rows - 1)  # [n, R]
        key = first_key + torch.minimum(key_span, keys - 1)  # [n, K]
        pages = batch.page_table[seq, key // batch.page_size].long()
        at = (position + offsets).unsqueeze(-1)  # [n, R, 1]
        key_end = torch.minimum((at // batch.block_size + 1) * batch.block_size, (first_key + keys).unsqueeze(-1))
        hidden = (first_key + key_span).unsqueeze(1) >= key_end  # [n, R, K]
        if window is not None:
            hidden |= at - key.unsqueeze(1) >= window
        mask = None
        if bool(hidden.any()):
            mask = torch.zeros(hidden.shape, dtype=self.dtype, device=device).masked_fill_(hidden, float("-inf"))
            mask = mask.repeat(1, self.shape.group, 1).unsqueeze(1)
        real = row_span < rows
        return _Group(
            rows=row + offsets,
            slots=pages * batch.page_size + key % batch.page_size,
            mask=mask,
            taken=real.flatten().nonzero().squeeze(-1),
            written=(row + offsets)[real],
        )


def _tiles(batch: ForwardBatch, window: int | None) -> list[_Tile]:
    starts, cached, kv_len = batch.seq_rows.tolist(), batch.cached.tolist(), batch.kv_len.tolist()
    tiles = []
    for seq, (row, end) in enumerate(pairwise(starts)):
        for first in range(row, end, TILE_ROWS):
            rows = min(TILE_ROWS, end - first)
            position = cached[seq] + first - row
            last = position + rows - 1
            key_end = min((last // batch.block_size + 1) * batch.block_size, kv_len[seq])
            first_key = 0 if window is None else max(0, position - window + 1)
            tiles.append(_Tile(seq, first, rows, position, first_key, key_end - first_key))
    return tiles

"""Paged block-diffusion attention in torch a row at a time, so that a row's bits depend on it and its keys alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.pages import read, read_keys
from runtime.layers.attention import AttentionShape
from runtime.layers.kv_pool import LayerKV


@dataclass(frozen=True)
class _Rows:
    """Some of a request's rows that see the same keys, which lie at `slots`."""

    rows: list[int]
    slots: torch.Tensor


@dataclass(frozen=True)
class _BatchAttention:
    shape: AttentionShape
    alike: list[_Rows]

    def attend(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        kv_heads, group, dim = self.shape.kv_heads, self.shape.group, self.shape.head_dim
        out = q.new_zeros(*q.shape[:2], kv.v.shape[-1])
        for some in self.alike:
            k = read_keys(kv.k, some.slots, dim).transpose(0, 1).contiguous().to(q.dtype)[None]
            v = read(kv.v, some.slots).transpose(0, 1).contiguous().to(q.dtype)[None]
            for row in some.rows:  # the query heads of one key head are the rows of one product
                query = q[row].clone().view(1, kv_heads, group, dim)
                out[row] = F.scaled_dot_product_attention(query, k, v, scale=self.shape.scale).view(-1, v.shape[-1])
        return out


class RowAttention:
    """See ``runtime.layers.attention.Attention``. Planning reads sizes on the host (it synchronises a GPU)."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape

    def plan(self, batch: ForwardBatch, window: int | None = None) -> _BatchAttention:
        ends = batch.visible_end.tolist()
        begins = [0] * len(ends)
        if window is not None:
            begins = [max(origin - window + 1, 0) for origin in batch.window_origin.tolist()]
        alike: dict[tuple[int, int, int], list[int]] = {}
        for request, first, count in batch.tiles.tolist():
            for row in range(first, first + count):
                if begins[row] < ends[row]:
                    alike.setdefault((request, begins[row], ends[row]), []).append(row)
        return _BatchAttention(self.shape, [self._rows(batch, *seen, rows) for seen, rows in alike.items()])

    def _rows(self, batch: ForwardBatch, request: int, begin: int, end: int, rows: list[int]) -> _Rows:
        keys = torch.arange(begin, end, device=batch.tokens.device)
        pages = batch.page_table[request, keys // batch.page_size].long()
        return _Rows(rows, pages * batch.page_size + keys % batch.page_size)

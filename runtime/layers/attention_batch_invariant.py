"""Batch-invariant paged attention in torch: one row at a time, so that its bits depend only on the row and its keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.pages import read, read_keys
from runtime.layers.attention import AttentionShape
from runtime.layers.kv_pool import LayerKV


@dataclass(frozen=True)
class _RowGroup:
    """Rows of a request with the same visible keys, which are stored at `slots`."""

    rows: list[int]
    slots: torch.Tensor


@dataclass(frozen=True)
class _BatchAttention:
    shape: AttentionShape
    row_groups: list[_RowGroup]

    def run(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        kv_heads, group, dim = self.shape.kv_heads, self.shape.group, self.shape.head_dim
        out = q.new_zeros(*q.shape[:2], kv.v.shape[-1])
        for same_keys in self.row_groups:
            k = read_keys(kv.k, same_keys.slots, dim).transpose(0, 1).contiguous().to(q.dtype)[None]
            v = read(kv.v, same_keys.slots).transpose(0, 1).contiguous().to(q.dtype)[None]
            for row in same_keys.rows:  # the query heads of a KV head are the rows of one GEMM
                query = q[row].clone().view(1, kv_heads, group, dim)
                out[row] = F.scaled_dot_product_attention(query, k, v, scale=self.shape.scale).view(-1, v.shape[-1])
        return out


class BatchInvariantAttention:
    """See ``runtime.layers.attention.Attention``. The metadata needs sizes on the host, which synchronizes a GPU."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape

    def prepare_metadata(self, batch: ForwardBatch, window: int | None = None) -> _BatchAttention:
        ends = batch.visible_end.tolist()
        begins = [0] * len(ends)
        if window is not None:
            begins = [max(origin - window + 1, 0) for origin in batch.window_pos.tolist()]
        row_groups: dict[tuple[int, int, int], list[int]] = {}
        for request, first, count in batch.query_tiles.tolist():
            for row in range(first, first + count):
                if begins[row] < ends[row]:
                    row_groups.setdefault((request, begins[row], ends[row]), []).append(row)
        return _BatchAttention(self.shape, [self._rows(batch, *seen, rows) for seen, rows in row_groups.items()])

    def _rows(self, batch: ForwardBatch, request: int, begin: int, end: int, rows: list[int]) -> _RowGroup:
        keys = torch.arange(begin, end, device=batch.tokens.device)
        pages = batch.page_table[request, keys // batch.page_size].long()
        return _RowGroup(rows, pages * batch.page_size + keys % batch.page_size)

"""Paged block-diffusion attention: interface, and implementations in torch and Triton (``--attn-impl``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from runtime.errors import ConfigError
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.paged_attention import paged_attention, read_keys, read_slots
from runtime.layers.kv_pool import LayerKV
from runtime.layers.layer_factory import LayerFactory


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of an attention layer: consecutive groups of heads / kv_heads query heads read one KV head. Scores are
    scaled by `scale`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


class BatchAttention(Protocol):
    """Attention over one batch, with all metadata that depends on the batch alone."""

    def run(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        """Computes attention over a layer's pages, which already contain the K/V of the batch.

        Args:
            q: [rows, heads, head_dim].
            kv: the pages.

        Returns:
            The shape and dtype of `q`.
        """
        ...


class Attention(Protocol):
    """One implementation, created for one shape, device and dtype.

    The batch defines the visible keys (``ForwardBatch``). Softmax and sums run in float32 (float64 for float64).
    """

    def prepare_metadata(self, batch: ForwardBatch, window: int | None = None) -> BatchAttention:
        """Prepares the metadata of a batch, once per forward for all layers with this window."""
        ...


PADDING_LIMIT = 1.5  # computed scores per required score, within a group
GROUP_CELLS = 1 << 22  # maximum scores of a group of several tiles, which bounds its masks


@dataclass(frozen=True)
class _Tile:
    request: int
    row: int  # first row in the batch
    rows: int
    first_key: int  # visible keys of its rows are in [first_key, first_key + keys)
    keys: int


@dataclass(frozen=True)
class _Group:
    """n tiles padded to R rows and K keys. Padding repeats a tile's own last row and key, and never reads an unwritten
    slot.
    """

    rows: torch.Tensor  # int64 [n, R], row of q
    slots: torch.Tensor  # int64 [n, K]
    mask: torch.Tensor | None  # [n, 1, group * R, K], 0 or -inf; None: all visible
    valid_results: torch.Tensor  # int64 [m], the results that are not padding, of n * R
    output_rows: torch.Tensor  # int64 [m], their rows in the output


@dataclass(frozen=True)
class _TorchBatchAttention:
    shape: AttentionShape
    groups: list[_Group]

    def run(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        kv_heads, group, dim = self.shape.kv_heads, self.shape.group, self.shape.head_dim
        out = q.new_empty(*q.shape[:2], kv.v.shape[-1])
        for part in self.groups:
            n, rows = part.rows.shape
            # the query heads of a KV head become rows of one GEMM: [n, kv_heads, group * rows, dim]
            queries = q[part.rows].view(n, rows, kv_heads, group, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
            k, v = read_keys(kv.k, part.slots, dim).transpose(1, 2), read_slots(kv.v, part.slots).transpose(1, 2)
            result = F.scaled_dot_product_attention(
                queries, k.to(q.dtype), v.to(q.dtype), attn_mask=part.mask, scale=self.shape.scale
            )
            result = torch.unflatten(result, 2, (group, rows)).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)
            out[part.output_rows] = result[part.valid_results]
        return out


@dataclass(frozen=True)
class TorchAttention:
    """`Attention` in torch: any device, any dtype, also float64. The metadata needs sizes on the host, which
    synchronizes a GPU.

    Tiles of similar size are padded to one shape and computed together: 32 short requests take few calls, and a long
    prompt does not make a square matrix of scores.
    """

    shape: AttentionShape
    dtype: torch.dtype

    def prepare_metadata(self, batch: ForwardBatch, window: int | None = None) -> _TorchBatchAttention:
        groups: list[list[_Tile]] = []
        cells = 0
        for tile in sorted(_tiles(batch, window), key=lambda t: (t.rows, t.keys), reverse=True):
            if groups:
                first = groups[-1][0]  # the most rows; later tiles may have more keys
                keys = max(max(t.keys for t in groups[-1]), tile.keys)
                padded = first.rows * keys * (len(groups[-1]) + 1)
                if padded <= min(GROUP_CELLS, PADDING_LIMIT * (cells + tile.rows * tile.keys)):
                    groups[-1].append(tile)
                    cells += tile.rows * tile.keys
                    continue
            groups.append([tile])
            cells = tile.rows * tile.keys
        return _TorchBatchAttention(self.shape, [self._group(batch, tiles, window) for tiles in groups])

    def _group(self, batch: ForwardBatch, tiles: list[_Tile], window: int | None) -> _Group:
        device = batch.tokens.device
        request, row, rows, first_key, keys = torch.tensor(
            [(t.request, t.row, t.rows, t.first_key, t.keys) for t in tiles], device=device
        ).T.unsqueeze(-1)  # each [n, 1]
        row_span = torch.arange(max(t.rows for t in tiles), device=device)
        key_span = torch.arange(max(t.keys for t in tiles), device=device)
        at = row + torch.minimum(row_span, rows - 1)  # [n, R]
        key = first_key + torch.minimum(key_span, keys - 1)  # [n, K]
        pages = batch.page_table[request, key // batch.page_size].long()
        hidden = (first_key + key_span).unsqueeze(1) >= batch.visible_end[at].unsqueeze(-1)  # [n, R, K]
        if window is not None:
            hidden |= batch.window_pos[at].unsqueeze(-1) - key.unsqueeze(1) >= window
        mask = None
        if bool(hidden.any()):
            mask = torch.zeros(hidden.shape, dtype=self.dtype, device=device).masked_fill_(hidden, float("-inf"))
            mask = mask.repeat(1, self.shape.group, 1).unsqueeze(1)
        is_valid = row_span < rows
        return _Group(
            rows=at,
            slots=pages * batch.page_size + key % batch.page_size,
            mask=mask,
            valid_results=is_valid.flatten().nonzero().squeeze(-1),
            output_rows=at[is_valid],
        )


def _tiles(batch: ForwardBatch, window: int | None) -> list[_Tile]:
    """Returns the tiles of the batch, each with the range of keys that it reads."""
    tiles = batch.query_tiles.cpu().numpy()
    tiles = tiles[tiles[:, 2] > 0]
    if not len(tiles):
        return []
    starts = tiles[:, 1]
    key_end = np.maximum.reduceat(batch.visible_end.cpu().numpy(), starts)
    first_key = np.zeros_like(key_end)
    if window is not None:
        origin = np.minimum.reduceat(batch.window_pos.cpu().numpy(), starts)
        first_key = np.maximum(origin - window + 1, 0)
    return [
        _Tile(*numbers)
        for numbers in zip(*tiles.T.tolist(), first_key.tolist(), (key_end - first_key).tolist(), strict=True)
    ]


@dataclass(frozen=True)
class _RowwiseBatchAttention:
    shape: AttentionShape
    row_groups: list[tuple[list[int], torch.Tensor]]  # rows with the same visible keys, and the slots of these keys

    def run(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        kv_heads, group, dim = self.shape.kv_heads, self.shape.group, self.shape.head_dim
        out = q.new_zeros(*q.shape[:2], kv.v.shape[-1])
        for rows, slots in self.row_groups:
            k = read_keys(kv.k, slots, dim).transpose(0, 1).contiguous().to(q.dtype)[None]
            v = read_slots(kv.v, slots).transpose(0, 1).contiguous().to(q.dtype)[None]
            for row in rows:  # the query heads of a KV head are the rows of one GEMM
                query = q[row].clone().view(1, kv_heads, group, dim)
                out[row] = F.scaled_dot_product_attention(query, k, v, scale=self.shape.scale).view(-1, v.shape[-1])
        return out


@dataclass(frozen=True)
class BatchInvariantAttention:
    """`Attention` in torch, one row at a time, so that its bits depend only on the row and its keys. The metadata needs
    sizes on the host, which synchronizes a GPU.
    """

    shape: AttentionShape

    def prepare_metadata(self, batch: ForwardBatch, window: int | None = None) -> _RowwiseBatchAttention:
        ends = batch.visible_end.tolist()
        begins = [0] * len(ends)
        if window is not None:
            begins = [max(origin - window + 1, 0) for origin in batch.window_pos.tolist()]
        row_groups: dict[tuple[int, int, int], list[int]] = {}
        for request, first, count in batch.query_tiles.tolist():
            for row in range(first, first + count):
                if begins[row] < ends[row]:
                    row_groups.setdefault((request, begins[row], ends[row]), []).append(row)
        return _RowwiseBatchAttention(
            self.shape, [(rows, _slots(batch, *visible)) for visible, rows in row_groups.items()]
        )


def _slots(batch: ForwardBatch, request: int, begin: int, end: int) -> torch.Tensor:
    """Returns where the keys at positions [begin, end) of a request are stored, int64."""
    keys = torch.arange(begin, end, device=batch.tokens.device)
    pages = batch.page_table[request, keys // batch.page_size].long()
    return pages * batch.page_size + keys % batch.page_size


@dataclass(frozen=True)
class TritonAttention:
    """`Attention` with Triton, for CUDA. The kernel reads the batch's tensors directly.

    `batch_invariant`: the bits of a row do not depend on the batch.
    """

    shape: AttentionShape
    grouped: bool
    batch_invariant: bool = False

    def prepare_metadata(self, batch: ForwardBatch, window: int | None = None) -> _TritonBatchAttention:
        return _TritonBatchAttention(self, batch, window)


@dataclass(frozen=True)
class _TritonBatchAttention:
    attention: TritonAttention
    batch: ForwardBatch
    window: int | None

    def run(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        return paged_attention(
            q, kv.k, kv.v, self.batch, scale=self.attention.shape.scale, window=self.window,
            grouped=self.attention.grouped, batch_invariant=self.attention.batch_invariant,
        )  # fmt: skip


def attention_names() -> list[str]:
    return ["triton_grouped", "triton", "torch", "naive"]


def make_attention(shape: AttentionShape, factory: LayerFactory) -> Attention:
    """Returns the implementation that the factory names; "naive" is an alias of "torch".

    Raises:
        ConfigError: unknown implementation, or one that the device or dtype does not support.
    """
    name, batch_invariant = factory.attn_impl, factory.kernels.batch_invariant
    if name not in attention_names():
        raise ConfigError(f"--attn-impl {name!r} is not known; known: {', '.join(attention_names())}")
    if name in ("torch", "naive"):
        return BatchInvariantAttention(shape) if batch_invariant else TorchAttention(shape, factory.dtype)
    if factory.device.type != "cuda":
        raise ConfigError(f"--attn-impl {name} needs a CUDA device, not {factory.device.type}; use --attn-impl torch")
    if factory.dtype == torch.float64:
        raise ConfigError(f"--attn-impl {name} does not compute in float64; use --attn-impl torch")
    return TritonAttention(shape, grouped=name == "triton_grouped", batch_invariant=batch_invariant)

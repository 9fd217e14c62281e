"""Block-diffusion attention over paged keys and values: prefill chunks and decode blocks in one launch.

Two variants share the kernel: one query head per program, or (grouped) all query heads of a KV head in one tile, which
reads each key once per group. With few programs, split-KV distributes the keys, and a second kernel merges the partial
results. Heads of 512 with many rows use `large_head_attention`.
"""

from __future__ import annotations

import torch

from runtime.kernels.forward_batch import MAX_TILE_ROWS, ForwardBatch
from runtime.kernels.large_head_attention import two_pass_attention, use_two_pass
from runtime.kernels.paged_attention_config import (
    HIGH_OCCUPANCY_PROGRAMS,
    num_kv_splits,
    select_config,
    select_config_high_occupancy,
)
from runtime.kernels.paged_attention_softmax import LOG2_E, load_page_ids, online_softmax_step
from runtime.kernels.paged_attention_split_kv import merge_split_kv
from runtime.kernels.pages import read, read_keys, strides
from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton


def paged_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: ForwardBatch,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Computes attention tile by tile with an explicit mask (docs/research/decoding-rules.md#visible-keys).

    Args:
        q: [rows, heads, head_dim]; k_cache, v_cache: one layer's pages (see ``runtime.kernels.pages``), which hold the
            batch's own rows already. Query heads h * group to (h + 1) * group - 1 read key head h.
        window: a query sees only the keys k with window_origin - k < window.

    Returns:
        Like q; softmax and sums in float32 (float64 for float64). Rows that are in no tile, or that see no key, are 0.
    """
    up, out = wide(q.dtype), torch.zeros_like(q)
    group = q.shape[1] // k_cache.shape[2]
    for request, first, count in batch.query_tiles.tolist():
        rows = slice(first, first + count)
        keys = torch.arange(max(batch.visible_end[rows].tolist(), default=0), device=q.device)
        slots = batch.page_table[request][keys // batch.page_size].long() * batch.page_size + keys % batch.page_size
        k = read_keys(k_cache, slots, q.shape[2]).to(up).repeat_interleave(group, dim=1)
        v = read(v_cache, slots).to(up).repeat_interleave(group, dim=1)
        visible = keys < batch.visible_end[rows, None]
        if window is not None:
            visible = visible & (batch.window_pos[rows, None] - keys < window)
        scores = torch.einsum("rhd,khd->hrk", q[rows].to(up), k) * scale
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        weights = torch.where(visible.any(-1, keepdim=True), weights, 0.0)
        out[rows] = torch.einsum("hrk,khd->rhd", weights, v).to(q.dtype)
    return out


@triton.jit(do_not_specialize=["table_stride", "all_rows", "window"])  # avoids a recompilation per value
def _paged_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, stats_ptr, tiles_ptr, visible_end_ptr, window_pos_ptr, table_ptr,
    table_stride, all_rows, scale_log2, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, PIECE: tl.constexpr,
    K_PAGE: tl.constexpr, K_TOKEN: tl.constexpr, K_HEAD: tl.constexpr, K_PIECE: tl.constexpr,
    V_PAGE: tl.constexpr, V_TOKEN: tl.constexpr, V_HEAD: tl.constexpr, V_NUMBER: tl.constexpr,
    PACKED: tl.constexpr, PACKED_P2: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM_P2: tl.constexpr,
    VALUES: tl.constexpr, WINDOWED: tl.constexpr, SPLITS: tl.constexpr, SPLIT_SIZE: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of a tile times PACKED query heads of one KV head, VALUES value columns, one of SPLITS
    splits.

    With several splits the result is partial: the unnormalized sum of values, [SPLITS, rows, heads, dim], and in [2,
    SPLITS, rows, heads] the maximum score and the sum of weights. A split has SPLIT_SIZE keys, or, if that is 0, an
    even part of the tile's keys.
    """
    part, tile = tl.program_id(1), tl.program_id(2)
    first_value = 0
    if VALUES < DIM_P2:
        part, first_value = part // (DIM_P2 // VALUES), part % (DIM_P2 // VALUES) * VALUES
    start = tl.program_id(0) // SPLITS * ROWS
    rows = tl.load(tiles_ptr + tile * 3 + 2)
    if start >= rows:
        return
    request = tl.load(tiles_ptr + tile * 3)
    first_row = tl.load(tiles_ptr + tile * 3 + 1)
    head = part * PACKED
    kv_head = head // (HEADS // KV_HEADS)

    offs_m = tl.arange(0, ROWS * PACKED_P2)
    row = start + offs_m // PACKED_P2
    head_offset = offs_m % PACKED_P2
    in_bounds = (row < rows) & (head_offset < PACKED)
    dim, value = tl.arange(0, DIM_P2), first_value + tl.arange(0, VALUES)
    q_at = ((first_row + row).to(tl.int64) * HEADS + head + head_offset)[:, None] * DIM + dim[None, :]
    q = tl.load(q_ptr + q_at, mask=in_bounds[:, None] & (dim < DIM)[None, :], other=0.0)

    visible_end = tl.load(visible_end_ptr + first_row + row, mask=row < rows, other=0)
    end = tl.max(visible_end, 0)  # keys beyond it are never read
    all_visible_end = tl.min(tl.where(row < rows, visible_end, 2147483647), 0)  # all rows see all keys before it
    begin = 0
    if WINDOWED:  # nor keys before the first window
        window_pos = tl.load(window_pos_ptr + first_row + row, mask=row < rows, other=2147483647).to(tl.int32)
        begin = tl.maximum(tl.min(window_pos, 0) - window + 1, 0) // KEYS * KEYS
        all_window_start = (
            tl.max(tl.where(row < rows, window_pos, 0), 0) - window + 1
        )  # all windows include the keys from here on
    split = tl.program_id(0) % SPLITS
    if SPLITS > 1:
        if SPLIT_SIZE > 0:
            end = tl.minimum(end, (split + 1) * SPLIT_SIZE)
            begin = tl.maximum(begin, split * SPLIT_SIZE)
        else:
            split_keys = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), KEYS), SPLITS) * KEYS
            begin += split * split_keys
            end = tl.minimum(end, begin + split_keys)

    m_i = tl.full([ROWS * PACKED_P2], float("-inf"), tl.float32)
    l_i = tl.zeros([ROWS * PACKED_P2], tl.float32)
    acc = tl.zeros([ROWS * PACKED_P2, VALUES], tl.float32)
    pages_at = table_ptr + request.to(tl.int64) * table_stride
    offs_n, element = tl.arange(0, KEYS), dim
    if PIECE < DIM:
        element = dim // PIECE * K_PIECE + dim % PIECE
    # KV blocks begin at multiples of KEYS, also with windows and splits, so that none crosses a page whose size is a
    # multiple of KEYS. Page ids are prefetched one KV block ahead.
    ONE_PAGE: tl.constexpr = PAGE % KEYS == 0
    if ONE_PAGE:
        page = load_page_ids(pages_at, begin, end, PAGE)
    else:
        page = load_page_ids(pages_at, begin + offs_n, end, PAGE)
    for first_key in range(begin, end, KEYS):
        block_page, key = page.to(tl.int64), first_key + offs_n
        if ONE_PAGE:  # offsets relative to the first key are the same in every KV block
            page = load_page_ids(pages_at, first_key + KEYS, end, PAGE)
            offset = tl.multiple_of(first_key % PAGE, KEYS)  # otherwise values with V_TOKEN 1 are not vectorized
            k_at = k_ptr + (block_page * K_PAGE + offset * K_TOKEN + kv_head * K_HEAD)
            v_at = v_ptr + (block_page * V_PAGE + offset * V_TOKEN + kv_head * V_HEAD)
            k_at += (offs_n * K_TOKEN)[:, None] + element[None, :]
            v_at += (offs_n * V_TOKEN)[:, None] + (value * V_NUMBER)[None, :]
        else:
            page = load_page_ids(pages_at, key + KEYS, end, PAGE)
            offset = key % PAGE
            k_from = block_page * K_PAGE + offset * K_TOKEN + kv_head * K_HEAD
            v_from = block_page * V_PAGE + offset * V_TOKEN + kv_head * V_HEAD
            k_at = k_ptr + (k_from[:, None] + element[None, :])
            v_at = v_ptr + (v_from[:, None] + (value * V_NUMBER)[None, :])
        key_ok = offs_n < end - first_key
        k = tl.load(k_at, mask=key_ok[:, None] & (dim < DIM)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        full = first_key + KEYS <= all_visible_end
        if WINDOWED:
            full = full & (first_key >= all_window_start)
        if not full:  # most KV blocks are visible to all rows and need no mask
            visible = key[None, :] < visible_end[:, None]
            if WINDOWED:
                visible = visible & (window_pos[:, None] - key[None, :] < window)
            scores = tl.where(visible, scores, float("-inf"))
        p, alpha, m_i, l_i = online_softmax_step(scores, m_i, l_i, scale_log2)
        if V_TOKEN == 1:  # contiguous along tokens: a mask along them would split the vector loads
            v = tl.where(key_ok[:, None], tl.load(v_at, mask=(value < DIM)[None, :], other=0.0), 0.0)
        else:
            v = tl.load(v_at, mask=key_ok[:, None] & (value < DIM)[None, :], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    row_head = (first_row + row).to(tl.int64) * HEADS + head + head_offset
    out_at = row_head[:, None] * DIM + value[None, :]
    if SPLITS > 1:
        at = split.to(tl.int64) * all_rows * HEADS
        tl.store(stats_ptr + at + row_head, m_i * scale_log2, mask=in_bounds)
        tl.store(stats_ptr + at + SPLITS * all_rows.to(tl.int64) * HEADS + row_head, l_i, mask=in_bounds)
        out_at += at * DIM
        in_bounds = in_bounds & (begin < end)  # otherwise the partial result is not read
    else:
        acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]  # a row may see no key
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=in_bounds[:, None] & (value < DIM)[None, :])


SPLIT_SIZE = 1024  # keys per split of batch-invariant attention


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: ForwardBatch,
    *,
    scale: float,
    window: int | None = None,
    grouped: bool = True,
    splits: int | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """`paged_attention_reference` for float32, float16 and bfloat16 on a GPU; no host sync.

    Args:
        grouped: one tile for all query heads of a KV head.
        splits: number of splits of the keys; the results' bits depend on it. None: selected by the size of the batch.
        batch_invariant: splits of SPLIT_SIZE keys and tiles of one height, so that the bits of a row depend only on its
            query and keys.
    """
    all_rows, heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    is_default = grouped and window is None and splits is None and not batch_invariant
    if is_default and use_two_pass(q, kv_heads, batch):
        return two_pass_attention(q, k_cache, v_cache, batch, scale=scale)
    out = torch.empty_like(q)
    packed = heads // kv_heads if grouped else 1
    packed_p2, dim_p2 = triton.next_power_of_2(packed), max(16, triton.next_power_of_2(dim))
    tiles = len(batch.query_tiles)
    tile = select_config(packed_p2, dim, q.element_size(), MAX_TILE_ROWS if batch_invariant else batch.tile_rows)
    programs = triton.cdiv(batch.tile_rows, tile.rows) * (heads // packed) * tiles
    if programs >= HIGH_OCCUPANCY_PROGRAMS and not batch_invariant:
        tile = select_config_high_occupancy(packed_p2, dim, q.element_size(), batch.tile_rows)
    parts, groups = triton.cdiv(batch.tile_rows, tile.rows), heads // packed * (dim_p2 // tile.values)
    if batch_invariant:
        splits = triton.cdiv(batch.page_table.shape[1] * batch.page_size, SPLIT_SIZE)
    splits = splits or num_kv_splits(parts * groups * tiles, triton.cdiv(batch.max_seq_len, tile.keys))
    partials = out if splits == 1 else q.new_empty(splits, *q.shape, dtype=torch.float32)
    stats = out if splits == 1 else q.new_empty(2, splits, all_rows, heads, dtype=torch.float32)
    _paged_attention[(parts * splits, groups, tiles)](
        q, k_cache, v_cache, partials, stats, batch.query_tiles, batch.visible_end, batch.window_pos, batch.page_table,
        batch.page_table.stride(0), all_rows, scale * LOG2_E, 0 if window is None else window,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, **strides(k_cache, v_cache),
        PACKED=packed, PACKED_P2=packed_p2, ROWS=tile.rows, KEYS=tile.keys, DIM_P2=dim_p2, VALUES=tile.values,
        WINDOWED=window is not None, SPLITS=splits, SPLIT_SIZE=SPLIT_SIZE if batch_invariant else 0,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if splits > 1:
        merge_split_kv(partials, stats, out)
    return out

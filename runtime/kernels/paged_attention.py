"""Block-diffusion attention over paged keys and values: prefill chunks and decode blocks in one launch.

Two variants share the kernel: one query head a program, or (grouped) all query heads of a key head in one tile, which
reads each key once for the whole group. Where there are few programs, the keys are split among several, and a second
kernel puts together what each made of its own. Heads of 512 of many rows are `attention_wide`'s.
"""

from __future__ import annotations

import torch

from runtime.kernels.forward_batch import TILE_ROWS, ForwardBatch
from runtime.kernels.large_head_attention import attention_in_two, quicker_in_two
from runtime.kernels.paged_attention_config import MANY, in_crowds, shares, tile_sizes
from runtime.kernels.paged_attention_softmax import LOG2_E, pages_of, weigh
from runtime.kernels.paged_attention_split_kv import put_together
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
    """Computes attention tile by tile with an explicit mask (docs/decoding-rules.md#visible-keys).

    Args:
        q: [rows, heads, head_dim]; k_cache, v_cache: one layer's pages (see ``runtime.kernels.pages``), which hold the
            batch's own rows already. Query heads h * group to (h + 1) * group - 1 read key head h.
        window: a query sees only the keys k with window_origin - k < window.

    Returns:
        Like q; softmax and sums in float32 (float64 for float64). Rows that are in no tile, or that see no key, are 0.
    """
    up, out = wide(q.dtype), torch.zeros_like(q)
    group = q.shape[1] // k_cache.shape[2]
    for request, first, count in batch.tiles.tolist():
        rows = slice(first, first + count)
        keys = torch.arange(max(batch.visible_end[rows].tolist(), default=0), device=q.device)
        slots = batch.page_table[request][keys // batch.page_size].long() * batch.page_size + keys % batch.page_size
        k = read_keys(k_cache, slots, q.shape[2]).to(up).repeat_interleave(group, dim=1)
        v = read(v_cache, slots).to(up).repeat_interleave(group, dim=1)
        visible = keys < batch.visible_end[rows, None]
        if window is not None:
            visible = visible & (batch.window_origin[rows, None] - keys < window)
        scores = torch.einsum("rhd,khd->hrk", q[rows].to(up), k) * scale
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        weights = torch.where(visible.any(-1, keepdim=True), weights, 0.0)
        out[rows] = torch.einsum("hrk,khd->rhd", weights, v).to(q.dtype)
    return out


@triton.jit(do_not_specialize=["table_stride", "all_rows", "window"])  # else each new value may compile again
def _paged_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, sums_ptr, tiles_ptr, visible_end_ptr, origin_ptr, table_ptr,
    table_stride, all_rows, scale_log2, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, PIECE: tl.constexpr,
    K_PAGE: tl.constexpr, K_TOKEN: tl.constexpr, K_HEAD: tl.constexpr, K_PIECE: tl.constexpr,
    V_PAGE: tl.constexpr, V_TOKEN: tl.constexpr, V_HEAD: tl.constexpr, V_NUMBER: tl.constexpr,
    PACKED: tl.constexpr, PACKED_P2: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM_P2: tl.constexpr,
    VALUES: tl.constexpr, WINDOWED: tl.constexpr, SPLITS: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one tile times PACKED query heads that read one key head, and of the values VALUES
    columns; of SPLITS shares of the keys one. A share's result is left as it is: what it summed of the values, [SPLITS,
    rows, heads, dim], and in [2, SPLITS, rows, heads] its largest score and the sum of its weights. A share is SHARE
    keys, or, if that is 0, as many as the tile's are divided into."""
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

    lane = tl.arange(0, ROWS * PACKED_P2)
    row = start + lane // PACKED_P2
    member = lane % PACKED_P2
    real = (row < rows) & (member < PACKED)
    dim, value = tl.arange(0, DIM_P2), first_value + tl.arange(0, VALUES)
    q_at = ((first_row + row).to(tl.int64) * HEADS + head + member)[:, None] * DIM + dim[None, :]
    q = tl.load(q_ptr + q_at, mask=real[:, None] & (dim < DIM)[None, :], other=0.0)

    visible_end = tl.load(visible_end_ptr + first_row + row, mask=row < rows, other=0)
    end = tl.max(visible_end, 0)  # whole tiles beyond it are never read
    whole = tl.min(tl.where(row < rows, visible_end, 2147483647), 0)  # every row sees all keys before it
    begin = 0
    if WINDOWED:  # nor those before the first window
        origin = tl.load(origin_ptr + first_row + row, mask=row < rows, other=2147483647).to(tl.int32)
        begin = tl.maximum(tl.min(origin, 0) - window + 1, 0) // KEYS * KEYS
        seen = tl.max(tl.where(row < rows, origin, 0), 0) - window + 1  # every window holds the keys from it on
    split = tl.program_id(0) % SPLITS
    if SPLITS > 1:
        if SHARE > 0:
            end = tl.minimum(end, (split + 1) * SHARE)
            begin = tl.maximum(begin, split * SHARE)
        else:
            share = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), KEYS), SPLITS) * KEYS
            begin += split * share
            end = tl.minimum(end, begin + share)

    best = tl.full([ROWS * PACKED_P2], float("-inf"), tl.float32)
    total = tl.zeros([ROWS * PACKED_P2], tl.float32)
    acc = tl.zeros([ROWS * PACKED_P2, VALUES], tl.float32)
    pages_at = table_ptr + request.to(tl.int64) * table_stride
    some, number = tl.arange(0, KEYS), dim
    if PIECE < DIM:
        number = dim // PIECE * K_PIECE + dim % PIECE
    # Rounds begin at multiples of KEYS, those of windows and of shares too, so that none crosses the end of a page that
    # is whole rounds: it has one page. Pages are asked for one round ahead, and none waits for them before its keys.
    ONE_PAGE: tl.constexpr = PAGE % KEYS == 0
    if ONE_PAGE:
        page = pages_of(pages_at, begin, end, PAGE)
    else:
        page = pages_of(pages_at, begin + some, end, PAGE)
    for first_key in range(begin, end, KEYS):
        mine, key = page.to(tl.int64), first_key + some
        if ONE_PAGE:  # how far keys lie behind the first one is the same in every round
            page = pages_of(pages_at, first_key + KEYS, end, PAGE)
            offset = tl.multiple_of(first_key % PAGE, KEYS)  # else values of V_TOKEN 1 are read one by one
            k_at = k_ptr + (mine * K_PAGE + offset * K_TOKEN + kv_head * K_HEAD)
            v_at = v_ptr + (mine * V_PAGE + offset * V_TOKEN + kv_head * V_HEAD)
            k_at += (some * K_TOKEN)[:, None] + number[None, :]
            v_at += (some * V_TOKEN)[:, None] + (value * V_NUMBER)[None, :]
        else:
            page = pages_of(pages_at, key + KEYS, end, PAGE)
            offset = key % PAGE
            k_from = mine * K_PAGE + offset * K_TOKEN + kv_head * K_HEAD
            v_from = mine * V_PAGE + offset * V_TOKEN + kv_head * V_HEAD
            k_at = k_ptr + (k_from[:, None] + number[None, :])
            v_at = v_ptr + (v_from[:, None] + (value * V_NUMBER)[None, :])
        key_ok = some < end - first_key
        k = tl.load(k_at, mask=key_ok[:, None] & (dim < DIM)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        full = first_key + KEYS <= whole
        if WINDOWED:
            full = full & (first_key >= seen)
        if not full:  # most rounds every row sees in full, and they need no masks
            visible = key[None, :] < visible_end[:, None]
            if WINDOWED:
                visible = visible & (origin[:, None] - key[None, :] < window)
            scores = tl.where(visible, scores, float("-inf"))
        weights, decay, best, total = weigh(scores, best, total, scale_log2)
        if V_TOKEN == 1:  # whole runs of a page's tokens: a mask that ends among them would split the loads
            v = tl.where(key_ok[:, None], tl.load(v_at, mask=(value < DIM)[None, :], other=0.0), 0.0)
        else:
            v = tl.load(v_at, mask=key_ok[:, None] & (value < DIM)[None, :], other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
    place = (first_row + row).to(tl.int64) * HEADS + head + member
    out_at = place[:, None] * DIM + value[None, :]
    if SPLITS > 1:
        at = split.to(tl.int64) * all_rows * HEADS
        tl.store(sums_ptr + at + place, best * scale_log2, mask=real)
        tl.store(sums_ptr + at + SPLITS * all_rows.to(tl.int64) * HEADS + place, total, mask=real)
        out_at += at * DIM
        real = real & (begin < end)  # else nobody reads it
    else:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # a row may have seen nothing
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=real[:, None] & (value < DIM)[None, :])


SHARE = 1024  # keys of a share where bits must not depend on the batch


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
    fixed: bool = False,
) -> torch.Tensor:
    """`paged_attention_reference` for float32, float16 and bfloat16 on a GPU; no host synchronisation. `splits`: shares
    of the keys, if not as many as suit the batch: bits depend on it. `fixed`: of SHARE keys each, and tiles of one
    height, so that a row's bits depend on it and its keys alone."""
    all_rows, heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    plain = grouped and window is None and splits is None and not fixed
    if plain and quicker_in_two(q, kv_heads, batch):
        return attention_in_two(q, k_cache, v_cache, batch, scale=scale)
    out = torch.empty_like(q)
    packed = heads // kv_heads if grouped else 1
    packed_p2, dim_p2 = triton.next_power_of_2(packed), max(16, triton.next_power_of_2(dim))
    tiles = len(batch.tiles)
    tile = tile_sizes(packed_p2, dim, q.element_size(), TILE_ROWS if fixed else batch.tile_rows)
    programs = triton.cdiv(batch.tile_rows, tile.rows) * (heads // packed) * tiles
    if programs >= MANY and not fixed:
        tile = in_crowds(packed_p2, dim, q.element_size(), batch.tile_rows)
    parts, groups = triton.cdiv(batch.tile_rows, tile.rows), heads // packed * (dim_p2 // tile.values)
    if fixed:
        splits = triton.cdiv(batch.page_table.shape[1] * batch.page_size, SHARE)
    splits = splits or shares(parts * groups * tiles, triton.cdiv(batch.reach, tile.keys))
    shared = out if splits == 1 else q.new_empty(splits, *q.shape, dtype=torch.float32)
    sums = out if splits == 1 else q.new_empty(2, splits, all_rows, heads, dtype=torch.float32)
    _paged_attention[(parts * splits, groups, tiles)](
        q, k_cache, v_cache, shared, sums, batch.tiles, batch.visible_end, batch.window_origin, batch.page_table,
        batch.page_table.stride(0), all_rows, scale * LOG2_E, 0 if window is None else window,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, **strides(k_cache, v_cache),
        PACKED=packed, PACKED_P2=packed_p2, ROWS=tile.rows, KEYS=tile.keys, DIM_P2=dim_p2, VALUES=tile.values,
        WINDOWED=window is not None, SPLITS=splits, SHARE=SHARE if fixed else 0, num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
    if splits > 1:
        put_together(shared, sums, out)
    return out

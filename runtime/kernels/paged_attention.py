"""Block-diffusion attention over paged keys and values: prefill chunks and decode blocks in one launch.

The strides of two tensors define the layout of a layer's pages. ``k_cache[page, offset, head, piece]`` is a contiguous
piece of a key. The pieces of a key follow each other, and the last one may be padded. ``v_cache[page, offset, head]``
is one value vector. Slot s is offset ``s % page_size`` of page ``s // page_size``.

Two variants share `_paged_attention`: one query head per program, or (grouped) all query heads of a KV head in one
tile, which reads each key once per group. With few programs, split-KV distributes the keys, and `_merge_split_kv`
merges the partial results (flash-decoding).

Many rows with a head dimension of 512 use `two_pass_attention`: a program has no registers for all value columns, and
`_paged_attention` would compute the scores once per half. Here they are computed once and kept in memory. Both kernels
iterate over the same tiles of keys. The first stores the weights of each tile relative to the running maximum, and the
factor alpha that rescales the sum of earlier tiles. The second sums the values as flash attention does, so that the
rounding is that of a single kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from runtime.kernels.common import heads_per_program, tl, triton, wide
from runtime.kernels.forward_batch import MAX_TILE_ROWS, ForwardBatch


def page_strides(k_cache: torch.Tensor, v_cache: torch.Tensor) -> dict[str, int]:
    """Returns the layout as the kernels' constants; equal for all pools of equal pages and heads.

    PAGE is the number of slots per page, and PIECE the number of elements per piece of a key. The others are strides in
    elements: K_ and V_ of a page, a slot (TOKEN), a KV head, a piece of a key, and a number of a value vector.
    """
    k_page, k_token, k_head, k_piece, _ = k_cache.stride()
    v_page, v_token, v_head, v_number = v_cache.stride()
    return {
        "PAGE": k_cache.shape[1], "PIECE": k_cache.shape[4],
        "K_PAGE": k_page, "K_TOKEN": k_token, "K_HEAD": k_head, "K_PIECE": k_piece,
        "V_PAGE": v_page, "V_TOKEN": v_token, "V_HEAD": v_head, "V_NUMBER": v_number,
    }  # fmt: skip


def read_slots(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Returns [*slots.shape, heads, ...] of either tensor at `slots`, in torch."""
    if cache.is_contiguous():  # a token is contiguous and copied at once
        tokens = cache.flatten(0, 1).flatten(1).index_select(0, slots.flatten())
        return tokens.view(*slots.shape, *cache.shape[2:])
    return cache[slots // cache.shape[1], slots % cache.shape[1]]


def write_slots(cache: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Stores `values` [rows, heads, ...] at `slots` [rows] of either tensor, in torch."""
    values = values.to(cache.dtype)
    if cache.is_contiguous():
        cache.flatten(0, 1).flatten(1).index_copy_(0, slots, values.flatten(1))
    else:
        cache[slots // cache.shape[1], slots % cache.shape[1]] = values


def read_keys(k_cache: torch.Tensor, slots: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns keys [*slots.shape, heads, dim], assembled from their pieces."""
    return read_slots(k_cache, slots).flatten(-2)[..., :dim]


def write_keys(k_cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor) -> None:
    """Stores keys [rows, heads, dim], cut into pieces."""
    pieces, piece = k_cache.shape[3:]
    write_slots(k_cache, slots, F.pad(k, (0, pieces * piece - k.shape[-1])).unflatten(-1, (pieces, piece)))


SPLIT_PROGRAMS = 200  # keys are split until there are this many programs
MAX_SPLITS = 9
# From this many programs, tiles with fewer keys are faster. So are tiles with more rows, if query tiles have at most
# DECODE_ROWS rows.
HIGH_OCCUPANCY_PROGRAMS = 384
DECODE_ROWS = 64


class AttentionConfig(NamedTuple):
    """Tile sizes of one program, whose BLOCK_M is rows times query heads."""

    rows: int
    keys: int  # per KV tile
    values: int  # value columns; if not all, the scores are computed once per part
    warps: int
    stages: int


def num_kv_splits(programs: int, max_splits: int) -> int:
    """Returns the number of splits of the keys (split-KV).

    Args:
        programs: number of programs without splits.
        max_splits: number of KV tiles.
    """
    return max(1, min(MAX_SPLITS, SPLIT_PROGRAMS // programs, max_splits))


def select_config(packed_p2: int, dim: int, element_size: int, tile_rows: int) -> AttentionConfig:
    """Selects the tile: BLOCK_M is 64 or 128, or at least 16 if no tile of the batch has as many rows.

    `packed_p2` is the number of query heads per program (PACKED), rounded up to a power of two.

    Decode blocks and prefill chunks use the same order of accumulation. float32 has no full-precision tensor cores and
    has tiles of at most 32 rows and 32 keys, to fit the registers. With heads above 256, 128 rows leave registers for
    half of the value columns; computing scores twice is cheaper than reading keys twice.
    """
    values = max(16, triton.next_power_of_2(dim))
    if element_size == 4:
        block_m, keys, warps, stages = 32, (32 if dim <= 256 else 16), 8, 2
    elif dim <= 128:
        block_m, keys, warps, stages = 64, 64, 4, 3
    elif dim <= 256:
        block_m, keys, warps, stages = 128, 32, 8, 3
    else:
        block_m, keys, warps, stages, values = 128, 32, 8, 2, values // 2
    min_rows = max(1, 16 // packed_p2)
    rows = min(max(min_rows, block_m // packed_p2), max(min_rows, triton.next_power_of_2(tile_rows)))
    return AttentionConfig(rows, keys, values, warps, stages)


def select_config_high_occupancy(packed_p2: int, dim: int, element_size: int, tile_rows: int) -> AttentionConfig:
    """Selects the tile for high occupancy. Other programs hide latency, so it minimizes re-reads of keys."""
    tile = select_config(packed_p2, dim, element_size, tile_rows)
    if element_size != 2 or dim > 128 or tile.rows * packed_p2 != 64:
        return tile
    rows = min(2 * tile.rows, triton.next_power_of_2(tile_rows)) if tile_rows <= DECODE_ROWS else tile.rows
    return tile._replace(rows=rows, keys=32, warps=4, stages=3)


class ScoresConfig(NamedTuple):
    """Tile sizes of the kernel of `two_pass_attention` that computes softmax weights."""

    block_m: int  # rows times query heads
    keys: int  # per KV tile
    depth: int  # elements of queries and keys per iteration
    warps: int
    stages: int


class ValuesConfig(NamedTuple):
    """Tile sizes of the kernel of `two_pass_attention` that sums the values."""

    values: int  # value columns
    keys: int  # per iteration: a KV tile, or a part of one
    warps: int
    stages: int


SCORES_CONFIG = ScoresConfig(128, 256, 64, 8, 4)
VALUES_CONFIG = ValuesConfig(128, 64, 8, 3)


LOG2_E = 1.4426950408889634


@triton.jit
def load_page_ids(pages_at, key, end, PAGE: tl.constexpr):
    """Returns the page of each key; separate per page so that the compiler knows the contiguity of a page's keys."""
    return tl.load(pages_at + key // PAGE, mask=key // PAGE * PAGE < end, other=0)


@triton.jit
def online_softmax_step(scores, m_i, l_i, scale_log2):
    """Computes one step of online softmax (arXiv 1805.02867).

    Args:
        scores: [BLOCK_M, keys] of a KV tile. m_i, l_i: running maximum and sum of weights, [BLOCK_M].

    Returns:
        The block's weights relative to the new maximum, the factor alpha that rescales earlier sums, the new m_i and
        l_i.
    """
    m_new = tl.maximum(m_i, tl.max(scores, 1))
    # -inf before the first visible key, and -inf - -inf would be NaN
    anchor = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(scores * scale_log2 - (anchor * scale_log2)[:, None])
    alpha = tl.exp2((m_i - anchor) * scale_log2)  # exactly 1 after a KV tile that a row does not see
    return p, alpha, m_new, l_i * alpha + tl.sum(p, 1)


def paged_attention_reference(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: ForwardBatch, *, scale: float,
    window: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Computes attention tile by tile with an explicit mask (docs/research/decoding-rules.md#visible-keys).

    Args:
        q: [rows, heads, head_dim]; k_cache, v_cache: one layer's pages, which hold the
            batch's own rows already. Query heads h * group to (h + 1) * group - 1 read key head h.
        window: a query sees only the keys k with window_pos - k < window.

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
        v = read_slots(v_cache, slots).to(up).repeat_interleave(group, dim=1)
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
    """Computes, per program, VALUES value columns of ROWS rows of a tile and PACKED query heads of one KV head.

    A program processes one of SPLITS splits of the keys.

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
    if WINDOWED:  # keys before the first window are never read
        window_pos = tl.load(window_pos_ptr + first_row + row, mask=row < rows, other=2147483647).to(tl.int32)
        begin = tl.maximum(tl.min(window_pos, 0) - window + 1, 0) // KEYS * KEYS
        # all windows include the keys from here on
        all_window_start = tl.max(tl.where(row < rows, window_pos, 0), 0) - window + 1
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
    # KV tiles begin at multiples of KEYS, also with windows and splits, so that none crosses a page whose size is a
    # multiple of KEYS. Page ids are prefetched one KV tile ahead.
    ONE_PAGE: tl.constexpr = PAGE % KEYS == 0
    if ONE_PAGE:
        page = load_page_ids(pages_at, begin, end, PAGE)
    else:
        page = load_page_ids(pages_at, begin + offs_n, end, PAGE)
    for first_key in range(begin, end, KEYS):
        block_page, key = page.to(tl.int64), first_key + offs_n
        if ONE_PAGE:  # offsets relative to the first key are the same in every KV tile
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
        if not full:  # most KV tiles are visible to all rows and need no mask
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
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: ForwardBatch, *, scale: float,
    window: int | None = None, grouped: bool = True, splits: int | None = None, batch_invariant: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Computes `paged_attention_reference` for float32, float16 and bfloat16 on a GPU; no host sync.

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
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, **page_strides(k_cache, v_cache),
        PACKED=packed, PACKED_P2=packed_p2, ROWS=tile.rows, KEYS=tile.keys, DIM_P2=dim_p2, VALUES=tile.values,
        WINDOWED=window is not None, SPLITS=splits, SPLIT_SIZE=SPLIT_SIZE if batch_invariant else 0,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if splits > 1:
        merge_split_kv(partials, stats, out)
    return out


@triton.jit(do_not_specialize=["all_rows"])
def _merge_split_kv(
    partial_ptr, stats_ptr, out_ptr, all_rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
    HEADS_P2: tl.constexpr, DIM_P2: tl.constexpr,
):  # fmt: skip
    """Merges HEADS_P2 heads of a row per program, over the splits in ascending order of keys."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_P2 + tl.arange(0, HEADS_P2)
    dim = tl.arange(0, DIM_P2)
    head_ok = head < HEADS
    ok = head_ok[:, None] & (dim < DIM)[None, :]
    split_stride = all_rows.to(tl.int64) * HEADS
    m_i = tl.full([HEADS_P2], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        m_i = tl.maximum(m_i, tl.load(stats_ptr + split * split_stride + row * HEADS + head, mask=head_ok, other=0.0))
    anchor = tl.where(m_i == float("-inf"), 0.0, m_i)
    l_i = tl.zeros([HEADS_P2], tl.float32)
    acc = tl.zeros([HEADS_P2, DIM_P2], tl.float32)
    at = (row * HEADS + head)[:, None] * DIM + dim[None, :]
    for split in tl.static_range(SPLITS):
        stats_at = stats_ptr + split * split_stride + row * HEADS + head
        score = tl.load(stats_at, mask=head_ok, other=float("-inf"))
        alpha = tl.exp2(score - anchor)
        l_i += alpha * tl.load(stats_at + SPLITS * split_stride, mask=head_ok, other=0.0)
        seen = ok & (score > float("-inf"))[:, None]
        acc += alpha[:, None] * tl.load(partial_ptr + split * split_stride * DIM + at, mask=seen, other=0.0)
    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=ok)


def merge_split_kv(partials: torch.Tensor, stats: torch.Tensor, out: torch.Tensor) -> None:
    """Merges partial results into `out` [rows, heads, dim].

    Args:
        partials: [splits, rows, heads, dim], unnormalized. stats: [2, splits, rows, heads], maxima and sums of weights.
    """
    splits, rows, heads, dim = partials.shape
    heads_p2 = heads_per_program(heads, dim)
    _merge_split_kv[(rows, triton.cdiv(heads, heads_p2))](
        partials, stats, out, rows, HEADS=heads, DIM=dim, SPLITS=splits, HEADS_P2=heads_p2,
        DIM_P2=max(16, triton.next_power_of_2(dim)), num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride", "first_tile", "kv_tiles"])  # avoids a recompilation per value
def _scores(
    q_ptr, k_ptr, p_ptr, alpha_ptr, l_ptr, tiles_ptr, visible_end_ptr, table_ptr,
    table_stride, first_tile, kv_tiles, scale_log2,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, PIECE: tl.constexpr,
    K_PAGE: tl.constexpr, K_TOKEN: tl.constexpr, K_HEAD: tl.constexpr, K_PIECE: tl.constexpr,
    PACKED_P2: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SUB_KEYS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Computes the weights of ROWS rows of a tile and all query heads of one KV head (BLOCK_M) per program.

    Stores weights [programs, kv_tiles, KEYS / SUB_KEYS, BLOCK_M, SUB_KEYS], alphas [programs, kv_tiles, BLOCK_M] and
    row sums [programs, BLOCK_M]. Only KV tiles with visible keys are stored.
    """
    tile = first_tile + tl.program_id(2)
    start = tl.program_id(0) * ROWS
    rows = tl.load(tiles_ptr + tile * 3 + 2)
    if start >= rows:
        return
    request = tl.load(tiles_ptr + tile * 3)
    first_row = tl.load(tiles_ptr + tile * 3 + 1)
    PACKED: tl.constexpr = HEADS // KV_HEADS
    BLOCK_M: tl.constexpr = ROWS * PACKED_P2
    kv_head = tl.program_id(1)
    program = ((tl.program_id(2) * KV_HEADS + kv_head) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64)

    offs_m = tl.arange(0, BLOCK_M)
    row = start + offs_m // PACKED_P2
    head = offs_m % PACKED_P2
    dim = tl.arange(0, DEPTH)
    element, K_STEP = dim, DEPTH
    if PIECE < DIM:
        element, K_STEP = dim // PIECE * K_PIECE + dim % PIECE, DEPTH // PIECE * K_PIECE
    q_at = ((first_row + row).to(tl.int64) * HEADS + kv_head * PACKED + head)[:, None] * DIM + dim[None, :]
    in_bounds = ((row < rows) & (head < PACKED))[:, None]

    visible_end = tl.load(visible_end_ptr + first_row + row, mask=row < rows, other=0)
    end = tl.max(visible_end, 0)
    unmasked_end = tl.min(tl.where(row < rows, visible_end, 2147483647), 0) // KEYS * KEYS
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    pages_at = table_ptr + request.to(tl.int64) * table_stride
    offs_n = tl.arange(0, KEYS)
    p_at = p_ptr + program * kv_tiles * (BLOCK_M * KEYS)
    p_at = p_at + offs_m[:, None] * SUB_KEYS + (offs_n // SUB_KEYS * (BLOCK_M * SUB_KEYS) + offs_n % SUB_KEYS)[None, :]
    alpha_at = alpha_ptr + program * kv_tiles * BLOCK_M + offs_m
    page = load_page_ids(pages_at, offs_n, end, PAGE)  # prefetched one KV tile ahead
    for phase in tl.static_range(2):  # KV tiles that all rows see in full need no mask
        start_key, stop_key = 0, unmasked_end
        if phase == 1:
            start_key, stop_key = unmasked_end, end
        for first_key in range(start_key, stop_key, KEYS):
            block_page, key = page, first_key + offs_n
            page = load_page_ids(pages_at, key + KEYS, end, PAGE)
            k_at = (block_page.to(tl.int64) * K_PAGE + key % PAGE * K_TOKEN + kv_head * K_HEAD)[:, None] + element[
                None, :
            ]
            # keys past the end are loaded too: their scores are masked
            scores = tl.zeros([BLOCK_M, KEYS], tl.float32)
            for part in range(DIM // DEPTH):
                q = tl.load(q_ptr + q_at + part * DEPTH, mask=in_bounds, other=0.0)
                k = tl.load(k_ptr + k_at + part * K_STEP)
                scores = tl.dot(q, tl.trans(k), scores, input_precision="ieee")
            if phase == 1:
                scores = tl.where(key[None, :] < visible_end[:, None], scores, float("-inf"))
            p, alpha, m_i, l_i = online_softmax_step(scores, m_i, l_i, scale_log2)
            tl.store(p_at + first_key * BLOCK_M, p.to(p_ptr.dtype.element_ty))
            tl.store(alpha_at + first_key // KEYS * BLOCK_M, alpha)
    tl.store(l_ptr + program * BLOCK_M + offs_m, l_i)


@triton.jit(do_not_specialize=["table_stride", "first_tile", "kv_tiles"])
def _values(
    v_ptr, p_ptr, alpha_ptr, l_ptr, out_ptr, tiles_ptr, visible_end_ptr, table_ptr,
    table_stride, first_tile, kv_tiles,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    V_PAGE: tl.constexpr, V_TOKEN: tl.constexpr, V_HEAD: tl.constexpr, V_NUMBER: tl.constexpr,
    PACKED_P2: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SUB_KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Sums, per program, VALUES value columns for the rows of one `_scores` program; SUB_KEYS keys per iteration."""
    COLUMNS: tl.constexpr = DIM // VALUES  # adjacent programs read the same weights
    tile, part = first_tile + tl.program_id(2), tl.program_id(0) // COLUMNS
    start = part * ROWS
    rows = tl.load(tiles_ptr + tile * 3 + 2)
    if start >= rows:
        return
    request = tl.load(tiles_ptr + tile * 3)
    first_row = tl.load(tiles_ptr + tile * 3 + 1)
    PACKED: tl.constexpr = HEADS // KV_HEADS
    BLOCK_M: tl.constexpr = ROWS * PACKED_P2
    kv_head = tl.program_id(1)
    program = ((tl.program_id(2) * KV_HEADS + kv_head) * (tl.num_programs(0) // COLUMNS) + part).to(tl.int64)

    offs_m = tl.arange(0, BLOCK_M)
    row = start + offs_m // PACKED_P2
    head = offs_m % PACKED_P2
    value = tl.program_id(0) % COLUMNS * VALUES + tl.arange(0, VALUES)
    end = tl.max(tl.load(visible_end_ptr + first_row + row, mask=row < rows, other=0), 0)
    pages_at = table_ptr + request.to(tl.int64) * table_stride
    offs_n = tl.arange(0, SUB_KEYS)
    p_at = p_ptr + program * kv_tiles * (BLOCK_M * KEYS) + offs_m[:, None] * SUB_KEYS + offs_n[None, :]
    alpha_at = alpha_ptr + program * kv_tiles * BLOCK_M + offs_m
    acc = tl.zeros([BLOCK_M, VALUES], tl.float32)
    # both are prefetched one iteration ahead; the first has nothing to rescale
    page, alpha = load_page_ids(pages_at, offs_n, end, PAGE), tl.full([BLOCK_M], 1.0, tl.float32)
    for phase in tl.static_range(2):
        start_key, stop_key = 0, end // SUB_KEYS * SUB_KEYS
        if phase == 1:
            start_key, stop_key = stop_key, end
        for first_key in range(start_key, stop_key, SUB_KEYS):
            block_page, key = page, first_key + offs_n
            page = load_page_ids(pages_at, key + SUB_KEYS, end, PAGE)
            scale, after = alpha, first_key + SUB_KEYS  # alpha applies at the start of a KV tile
            alpha = tl.load(alpha_at + after // KEYS * BLOCK_M, mask=(after < end) & (after % KEYS == 0), other=1.0)
            p = tl.load(p_at + first_key * BLOCK_M)
            v_at = block_page.to(tl.int64) * V_PAGE + key % PAGE * V_TOKEN + kv_head * V_HEAD
            v = tl.load(v_ptr + v_at[:, None] + (value * V_NUMBER)[None, :])
            if phase == 1:  # unwritten slots may hold NaN, and NaN * 0 is NaN
                v = tl.where((key < end)[:, None], v, 0.0)
            acc = tl.dot(p, v, acc * scale[:, None], input_precision="ieee")
    l_i = tl.load(l_ptr + program * BLOCK_M + offs_m)
    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]  # a row may see no key
    out_at = ((first_row + row).to(tl.int64) * HEADS + kv_head * PACKED + head)[:, None] * DIM + value[None, :]
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=((row < rows) & (head < PACKED))[:, None])


MAX_WORKSPACE = 512 << 20  # bytes of weights per pass
MIN_PROGRAMS = 128  # programs per pass from which two kernels are faster


def _tiles_per_pass(q: torch.Tensor, kv_heads: int, batch: ForwardBatch, config: ScoresConfig) -> tuple[int, int]:
    """Returns the number of tiles per pass that fit the workspace, and the number of programs per tile.

    Tiles are evenly distributed over the passes. 0: not even one tile fits.
    """
    programs = triton.cdiv(batch.tile_rows, config.block_m // triton.next_power_of_2(q.shape[1] // kv_heads)) * kv_heads
    max_count = MAX_WORKSPACE // (
        programs * _max_kv_tiles(batch, config) * config.block_m * config.keys * q.element_size()
    )
    tiles = len(batch.query_tiles)
    return (triton.cdiv(tiles, triton.cdiv(tiles, max_count)) if max_count else 0), programs


def _max_kv_tiles(batch: ForwardBatch, config: ScoresConfig) -> int:
    """Returns an upper bound of the number of KV tiles.

    It depends on the page table, not on `max_seq_len`, because a row may see keys after all rows of the batch.
    """
    return triton.cdiv(batch.page_table.shape[1] * batch.page_size, config.keys)


def use_two_pass(q: torch.Tensor, kv_heads: int, batch: ForwardBatch) -> bool:
    """Whether to use `two_pass_attention`, by shapes alone: large heads, rows that fill BLOCK_M, and enough programs
    per pass that split-KV is not needed.
    """
    dim, packed_p2 = q.shape[2], triton.next_power_of_2(q.shape[1] // kv_heads)
    if q.element_size() != 2 or dim <= 256 or dim & (dim - 1):
        return False
    if not packed_p2 <= SCORES_CONFIG.block_m <= packed_p2 * batch.tile_rows:
        return False
    tiles, programs = _tiles_per_pass(q, kv_heads, batch, SCORES_CONFIG)
    return tiles * programs >= MIN_PROGRAMS


def two_pass_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: ForwardBatch, *, scale: float,
    scores_config: ScoresConfig = SCORES_CONFIG, values_config: ValuesConfig = VALUES_CONFIG,
) -> torch.Tensor:  # fmt: skip
    """Computes `paged_attention_reference` without a window; no host sync.

    The dtype is float16 or bfloat16, and the head_dim a power of two, at least 16.
    """
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[2]
    out = torch.empty_like(q)
    tiles_per_pass, programs = _tiles_per_pass(q, kv_heads, batch, scores_config)
    tiles_per_pass, kv_tiles = max(1, tiles_per_pass), _max_kv_tiles(batch, scores_config)
    p = v_cache.new_empty(tiles_per_pass * programs, kv_tiles, scores_config.block_m * scores_config.keys)
    alphas = q.new_empty(tiles_per_pass * programs, kv_tiles, scores_config.block_m, dtype=torch.float32)
    row_sums = q.new_empty(tiles_per_pass * programs, scores_config.block_m, dtype=torch.float32)
    parts, packed_p2 = programs // kv_heads, triton.next_power_of_2(heads // kv_heads)
    layout = page_strides(k_cache, v_cache)
    shape = {
        "HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "PAGE": layout["PAGE"], "PACKED_P2": packed_p2,
        "ROWS": scores_config.block_m // packed_p2, "KEYS": scores_config.keys, "SUB_KEYS": values_config.keys,
    }  # fmt: skip
    keys = {name: layout[name] for name in ("PIECE", "K_PAGE", "K_TOKEN", "K_HEAD", "K_PIECE")}
    values = {name: layout[name] for name in ("V_PAGE", "V_TOKEN", "V_HEAD", "V_NUMBER")}
    batch_args = (batch.query_tiles, batch.visible_end, batch.page_table, batch.page_table.stride(0))
    columns = min(values_config.values, dim)
    for first in range(0, len(batch.query_tiles), tiles_per_pass):
        tiles = min(tiles_per_pass, len(batch.query_tiles) - first)
        _scores[(parts, kv_heads, tiles)](
            q, k_cache, p, alphas, row_sums, *batch_args, first, kv_tiles, scale * LOG2_E,
            **shape, **keys, DEPTH=min(scores_config.depth, dim), num_warps=scores_config.warps,
            num_stages=scores_config.stages,
        )  # fmt: skip
        _values[(parts * (dim // columns), kv_heads, tiles)](
            v_cache, p, alphas, row_sums, out, *batch_args, first, kv_tiles,
            **shape, **values, VALUES=columns,
            num_warps=values_config.warps, num_stages=values_config.stages,
        )  # fmt: skip
    return out

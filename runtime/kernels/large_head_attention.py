"""Paged attention for large heads in two kernels: softmax weights, kept in memory, then the weighted values.

With heads of 512 a program has no registers for all value columns, and `paged_attention` would compute the scores once
per half. Here they are computed once. Both kernels iterate over the same KV blocks. The first stores the weights of
each block relative to the running maximum, and the factor alpha that rescales the sum of earlier blocks. The second
sums the values as flash attention does, so that the rounding is that of a single kernel.
"""

from __future__ import annotations

import torch

from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.paged_attention_config import SCORES_CONFIG, VALUES_CONFIG, ScoresConfig, ValuesConfig
from runtime.kernels.paged_attention_softmax import LOG2_E, load_page_ids, online_softmax_step
from runtime.kernels.pages import strides
from runtime.kernels.triton_import import tl, triton


@triton.jit(do_not_specialize=["table_stride", "first_tile", "kv_blocks"])  # avoids a recompilation per value
def _scores(
    q_ptr, k_ptr, p_ptr, alpha_ptr, l_ptr, tiles_ptr, visible_end_ptr, table_ptr,
    table_stride, first_tile, kv_blocks, scale_log2,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, PIECE: tl.constexpr,
    K_PAGE: tl.constexpr, K_TOKEN: tl.constexpr, K_HEAD: tl.constexpr, K_PIECE: tl.constexpr,
    PACKED_P2: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SUB_KEYS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of a tile times all query heads of one KV head (BLOCK_M).

    Stores weights [programs, kv_blocks, KEYS / SUB_KEYS, BLOCK_M, SUB_KEYS], alphas [programs, kv_blocks, BLOCK_M] and
    row sums [programs, BLOCK_M], as far as the rows see.
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
    p_at = p_ptr + program * kv_blocks * (BLOCK_M * KEYS)
    p_at = p_at + offs_m[:, None] * SUB_KEYS + (offs_n // SUB_KEYS * (BLOCK_M * SUB_KEYS) + offs_n % SUB_KEYS)[None, :]
    alpha_at = alpha_ptr + program * kv_blocks * BLOCK_M + offs_m
    page = load_page_ids(pages_at, offs_n, end, PAGE)  # prefetched one KV block ahead
    for phase in tl.static_range(2):  # KV blocks that all rows see in full need no mask
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


@triton.jit(do_not_specialize=["table_stride", "first_tile", "kv_blocks"])
def _values(
    v_ptr, p_ptr, alpha_ptr, l_ptr, out_ptr, tiles_ptr, visible_end_ptr, table_ptr,
    table_stride, first_tile, kv_blocks,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    V_PAGE: tl.constexpr, V_TOKEN: tl.constexpr, V_HEAD: tl.constexpr, V_NUMBER: tl.constexpr,
    PACKED_P2: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SUB_KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """One program: VALUES value columns for the rows of one `_scores` program, SUB_KEYS keys per iteration."""
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
    p_at = p_ptr + program * kv_blocks * (BLOCK_M * KEYS) + offs_m[:, None] * SUB_KEYS + offs_n[None, :]
    alpha_at = alpha_ptr + program * kv_blocks * BLOCK_M + offs_m
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
            scale, after = alpha, first_key + SUB_KEYS  # alpha applies at the start of a KV block
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
    """Returns how many tiles fit the workspace per pass, evenly distributed (0: not even one), and the programs per
    tile.
    """
    programs = triton.cdiv(batch.tile_rows, config.block_m // triton.next_power_of_2(q.shape[1] // kv_heads)) * kv_heads
    max_count = MAX_WORKSPACE // (
        programs * _max_kv_blocks(batch, config) * config.block_m * config.keys * q.element_size()
    )
    tiles = len(batch.query_tiles)
    return (triton.cdiv(tiles, triton.cdiv(tiles, max_count)) if max_count else 0), programs


def _max_kv_blocks(batch: ForwardBatch, config: ScoresConfig) -> int:
    """Upper bound of KV blocks, by the page table instead of `max_seq_len`: a row may see keys behind all rows of the
    batch.
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
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: ForwardBatch,
    *,
    scale: float,
    scores_config: ScoresConfig = SCORES_CONFIG,
    values_config: ValuesConfig = VALUES_CONFIG,
) -> torch.Tensor:
    """`paged_attention_reference` without a window, for float16 and bfloat16 and a head_dim that is a power of two
    from 16 on; no host sync.
    """
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[2]
    out = torch.empty_like(q)
    tiles_per_pass, programs = _tiles_per_pass(q, kv_heads, batch, scores_config)
    tiles_per_pass, kv_blocks = max(1, tiles_per_pass), _max_kv_blocks(batch, scores_config)
    p = v_cache.new_empty(tiles_per_pass * programs, kv_blocks, scores_config.block_m * scores_config.keys)
    alphas = q.new_empty(tiles_per_pass * programs, kv_blocks, scores_config.block_m, dtype=torch.float32)
    row_sums = q.new_empty(tiles_per_pass * programs, scores_config.block_m, dtype=torch.float32)
    parts, packed_p2 = programs // kv_heads, triton.next_power_of_2(heads // kv_heads)
    layout = strides(k_cache, v_cache)
    shape = {"HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "PAGE": layout["PAGE"]}
    shape |= {
        "PACKED_P2": packed_p2,
        "ROWS": scores_config.block_m // packed_p2,
        "KEYS": scores_config.keys,
        "SUB_KEYS": values_config.keys,
    }
    keys = {name: layout[name] for name in ("PIECE", "K_PAGE", "K_TOKEN", "K_HEAD", "K_PIECE")}
    values = {name: layout[name] for name in ("V_PAGE", "V_TOKEN", "V_HEAD", "V_NUMBER")}
    batch_args = (batch.query_tiles, batch.visible_end, batch.page_table, batch.page_table.stride(0))
    columns = min(values_config.values, dim)
    for first in range(0, len(batch.query_tiles), tiles_per_pass):
        tiles = min(tiles_per_pass, len(batch.query_tiles) - first)
        _scores[(parts, kv_heads, tiles)](
            q, k_cache, p, alphas, row_sums, *batch_args, first, kv_blocks, scale * LOG2_E,
            **shape, **keys, DEPTH=min(scores_config.depth, dim), num_warps=scores_config.warps,
            num_stages=scores_config.stages,
        )  # fmt: skip
        _values[(parts * (dim // columns), kv_heads, tiles)](
            v_cache, p, alphas, row_sums, out, *batch_args, first, kv_blocks,
            **shape, **values, VALUES=columns,
            num_warps=values_config.warps, num_stages=values_config.stages,
        )  # fmt: skip
    return out

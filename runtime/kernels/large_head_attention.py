"""Attention of wide heads in two kernels: the softmax's weights, kept in memory, and the values that they weigh.

Of heads of 512 one program has no registers for all columns of the values, and `paged_attention`'s makes the scores
once for each half of them. Here they are made once. Both kernels walk the keys in the same rounds: the first leaves of
each its weights, by the largest score so far, and by how much what was summed before it decays; the second sums the
values by these as flash attention does, so that nothing is rounded that would not be in one kernel.
"""

from __future__ import annotations

import torch

from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.paged_attention_config import SUMMING, WEIGHING, Summing, Weighing
from runtime.kernels.paged_attention_softmax import LOG2_E, pages_of, weigh
from runtime.kernels.pages import strides
from runtime.kernels.triton_import import tl, triton


@triton.jit(do_not_specialize=["table_stride", "first_tile", "rounds"])  # else each new value may compile again
def _weights(
    q_ptr, k_ptr, weights_ptr, decays_ptr, totals_ptr, tiles_ptr, visible_end_ptr, table_ptr,
    table_stride, first_tile, rounds, scale_log2,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, PIECE: tl.constexpr,
    K_PAGE: tl.constexpr, K_TOKEN: tl.constexpr, K_HEAD: tl.constexpr, K_PIECE: tl.constexpr,
    PACKED_P2: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SOME: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of a tile times all query heads of a key head, its lanes. Its own parts of weights
    [programs, rounds, KEYS / SOME, lanes, SOME], decays [programs, rounds, lanes] and totals [programs, lanes] it fills
    as far as its rows see."""
    tile = first_tile + tl.program_id(2)
    start = tl.program_id(0) * ROWS
    rows = tl.load(tiles_ptr + tile * 3 + 2)
    if start >= rows:
        return
    request = tl.load(tiles_ptr + tile * 3)
    first_row = tl.load(tiles_ptr + tile * 3 + 1)
    PACKED: tl.constexpr = HEADS // KV_HEADS
    LANES: tl.constexpr = ROWS * PACKED_P2
    kv_head = tl.program_id(1)
    program = ((tl.program_id(2) * KV_HEADS + kv_head) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64)

    lane = tl.arange(0, LANES)
    row = start + lane // PACKED_P2
    member = lane % PACKED_P2
    dim = tl.arange(0, DEPTH)
    number, FURTHER = dim, DEPTH
    if PIECE < DIM:
        number, FURTHER = dim // PIECE * K_PIECE + dim % PIECE, DEPTH // PIECE * K_PIECE
    q_at = ((first_row + row).to(tl.int64) * HEADS + kv_head * PACKED + member)[:, None] * DIM + dim[None, :]
    real = ((row < rows) & (member < PACKED))[:, None]

    visible_end = tl.load(visible_end_ptr + first_row + row, mask=row < rows, other=0)
    end = tl.max(visible_end, 0)
    whole_end = tl.min(tl.where(row < rows, visible_end, 2147483647), 0) // KEYS * KEYS
    best = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    pages_at = table_ptr + request.to(tl.int64) * table_stride
    some = tl.arange(0, KEYS)
    weights_at = weights_ptr + program * rounds * (LANES * KEYS)
    weights_at = weights_at + lane[:, None] * SOME + (some // SOME * (LANES * SOME) + some % SOME)[None, :]
    decays_at = decays_ptr + program * rounds * LANES + lane
    page = pages_of(pages_at, some, end, PAGE)  # asked for one round ahead
    for stretch in tl.static_range(2):  # rounds that every row sees in full need no masks
        since, until = 0, whole_end
        if stretch == 1:
            since, until = whole_end, end
        for first_key in range(since, until, KEYS):
            mine, key = page, first_key + some
            page = pages_of(pages_at, key + KEYS, end, PAGE)
            k_at = (mine.to(tl.int64) * K_PAGE + key % PAGE * K_TOKEN + kv_head * K_HEAD)[:, None] + number[None, :]
            # what lies beyond the end is read too: its scores are masked
            scores = tl.zeros([LANES, KEYS], tl.float32)
            for part in range(DIM // DEPTH):
                q = tl.load(q_ptr + q_at + part * DEPTH, mask=real, other=0.0)
                k = tl.load(k_ptr + k_at + part * FURTHER)
                scores = tl.dot(q, tl.trans(k), scores, input_precision="ieee")
            if stretch == 1:
                scores = tl.where(key[None, :] < visible_end[:, None], scores, float("-inf"))
            weights, decay, best, total = weigh(scores, best, total, scale_log2)
            tl.store(weights_at + first_key * LANES, weights.to(weights_ptr.dtype.element_ty))
            tl.store(decays_at + first_key // KEYS * LANES, decay)
    tl.store(totals_ptr + program * LANES + lane, total)


@triton.jit(do_not_specialize=["table_stride", "first_tile", "rounds"])
def _values(
    v_ptr, weights_ptr, decays_ptr, totals_ptr, out_ptr, tiles_ptr, visible_end_ptr, table_ptr,
    table_stride, first_tile, rounds,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    V_PAGE: tl.constexpr, V_TOKEN: tl.constexpr, V_HEAD: tl.constexpr, V_NUMBER: tl.constexpr,
    PACKED_P2: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SOME: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """One program: VALUES columns of the values for the lanes of one of `_weights`'s, SOME keys at a time."""
    COLUMNS: tl.constexpr = DIM // VALUES  # programs of the same lanes: neighbours, that read the same weights
    tile, part = first_tile + tl.program_id(2), tl.program_id(0) // COLUMNS
    start = part * ROWS
    rows = tl.load(tiles_ptr + tile * 3 + 2)
    if start >= rows:
        return
    request = tl.load(tiles_ptr + tile * 3)
    first_row = tl.load(tiles_ptr + tile * 3 + 1)
    PACKED: tl.constexpr = HEADS // KV_HEADS
    LANES: tl.constexpr = ROWS * PACKED_P2
    kv_head = tl.program_id(1)
    program = ((tl.program_id(2) * KV_HEADS + kv_head) * (tl.num_programs(0) // COLUMNS) + part).to(tl.int64)

    lane = tl.arange(0, LANES)
    row = start + lane // PACKED_P2
    member = lane % PACKED_P2
    value = tl.program_id(0) % COLUMNS * VALUES + tl.arange(0, VALUES)
    end = tl.max(tl.load(visible_end_ptr + first_row + row, mask=row < rows, other=0), 0)
    pages_at = table_ptr + request.to(tl.int64) * table_stride
    some = tl.arange(0, SOME)
    weights_at = weights_ptr + program * rounds * (LANES * KEYS) + lane[:, None] * SOME + some[None, :]
    decays_at = decays_ptr + program * rounds * LANES + lane
    acc = tl.zeros([LANES, VALUES], tl.float32)
    # both asked for one step ahead; there is nothing yet that would decay in the first
    page, decay = pages_of(pages_at, some, end, PAGE), tl.full([LANES], 1.0, tl.float32)
    for stretch in tl.static_range(2):
        since, until = 0, end // SOME * SOME
        if stretch == 1:
            since, until = until, end
        for first_key in range(since, until, SOME):
            mine, key = page, first_key + some
            page = pages_of(pages_at, key + SOME, end, PAGE)
            by, after = decay, first_key + SOME  # where a round begins there is a decay
            decay = tl.load(decays_at + after // KEYS * LANES, mask=(after < end) & (after % KEYS == 0), other=1.0)
            weights = tl.load(weights_at + first_key * LANES)
            v_at = mine.to(tl.int64) * V_PAGE + key % PAGE * V_TOKEN + kv_head * V_HEAD
            v = tl.load(v_ptr + v_at[:, None] + (value * V_NUMBER)[None, :])
            if stretch == 1:  # what nobody wrote may be NaN, which a weight of 0 does not undo
                v = tl.where((key < end)[:, None], v, 0.0)
            acc = tl.dot(weights, v, acc * by[:, None], input_precision="ieee")
    total = tl.load(totals_ptr + program * LANES + lane)
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # a row may have seen nothing
    out_at = ((first_row + row).to(tl.int64) * HEADS + kv_head * PACKED + member)[:, None] * DIM + value[None, :]
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=((row < rows) & (member < PACKED))[:, None])


MOST = 512 << 20  # bytes of weights that are kept at a time
ENOUGH = 128  # programs at a time that make weights


def _tiles_at_once(q: torch.Tensor, kv_heads: int, batch: ForwardBatch, how: Weighing) -> tuple[int, int]:
    """How many tiles' weights are kept at a time, about as many every time, 0 if there is no room for one's; and how
    many programs make a tile's."""
    programs = triton.cdiv(batch.tile_rows, how.lanes // triton.next_power_of_2(q.shape[1] // kv_heads)) * kv_heads
    most = MOST // (programs * _rounds(batch, how) * how.lanes * how.keys * q.element_size())
    tiles = len(batch.tiles)
    return (triton.cdiv(tiles, triton.cdiv(tiles, most)) if most else 0), programs


def _rounds(batch: ForwardBatch, how: Weighing) -> int:
    """Of keys, at most; not by the batch's `reach`: what a row sees may lie behind all rows."""
    return triton.cdiv(batch.page_table.shape[1] * batch.page_size, how.keys)


def quicker_in_two(q: torch.Tensor, kv_heads: int, batch: ForwardBatch) -> bool:
    """Whether `attention_in_two` is for these, by their shapes alone: wide heads, rows that fill its lanes, and so many
    programs at a time that keys need not be split among them."""
    dim, packed_p2 = q.shape[2], triton.next_power_of_2(q.shape[1] // kv_heads)
    if q.element_size() != 2 or dim <= 256 or dim & (dim - 1):
        return False
    if not packed_p2 <= WEIGHING.lanes <= packed_p2 * batch.tile_rows:
        return False
    tiles, programs = _tiles_at_once(q, kv_heads, batch, WEIGHING)
    return tiles * programs >= ENOUGH


def attention_in_two(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: ForwardBatch,
    *,
    scale: float,
    weighing: Weighing = WEIGHING,
    summing: Summing = SUMMING,
) -> torch.Tensor:
    """`paged_attention_reference` without a window, for float16 and bfloat16, and heads of 16, 32, 64, .. numbers; no
    host synchronisation."""
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[2]
    out = torch.empty_like(q)
    together, programs = _tiles_at_once(q, kv_heads, batch, weighing)
    together, rounds = max(1, together), _rounds(batch, weighing)
    weights = v_cache.new_empty(together * programs, rounds, weighing.lanes * weighing.keys)
    decays = q.new_empty(together * programs, rounds, weighing.lanes, dtype=torch.float32)
    totals = q.new_empty(together * programs, weighing.lanes, dtype=torch.float32)
    parts, packed_p2 = programs // kv_heads, triton.next_power_of_2(heads // kv_heads)
    layout = strides(k_cache, v_cache)
    shape = {"HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "PAGE": layout["PAGE"]}
    shape |= {"PACKED_P2": packed_p2, "ROWS": weighing.lanes // packed_p2, "KEYS": weighing.keys, "SOME": summing.keys}
    keys = {name: layout[name] for name in ("PIECE", "K_PAGE", "K_TOKEN", "K_HEAD", "K_PIECE")}
    values = {name: layout[name] for name in ("V_PAGE", "V_TOKEN", "V_HEAD", "V_NUMBER")}
    sight = (batch.tiles, batch.visible_end, batch.page_table, batch.page_table.stride(0))
    columns = min(summing.values, dim)
    for first in range(0, len(batch.tiles), together):
        tiles = min(together, len(batch.tiles) - first)
        _weights[(parts, kv_heads, tiles)](
            q, k_cache, weights, decays, totals, *sight, first, rounds, scale * LOG2_E,
            **shape, **keys, DEPTH=min(weighing.depth, dim), num_warps=weighing.warps, num_stages=weighing.stages,
        )  # fmt: skip
        _values[(parts * (dim // columns), kv_heads, tiles)](
            v_cache, weights, decays, totals, out, *sight, first, rounds,
            **shape, **values, VALUES=columns,
            num_warps=summing.warps, num_stages=summing.stages,
        )  # fmt: skip
    return out

"""Fused norm per head, clipping, rotary embedding and write of K/V to the paged pool, in one pass over the QKV rows.

docs/models/architecture-notes.md states which models use what. The rotary embedding (NeoX style) covers all or some
dimensions of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.common import heads_per_program, tl, triton, wide
from runtime.kernels.layernorm import rms_norm_reference
from runtime.kernels.paged_attention import page_strides, write_keys, write_slots


def write_kv_reference(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """Stores row r of k and v [rows, kv_heads, head_dim] at slot ``slots[r]`` of one layer's pages
    (``paged_attention``).

    Slots (int64) are distinct; rows with slot -1 are not stored.
    """
    if int(slots.min()) < 0:
        valid = slots >= 0
        k, v, slots = k[valid], v[valid], slots[valid]
    write_keys(k_cache, slots, k)
    write_slots(v_cache, slots, v)


TILE = 1024  # elements of a row's heads per program
WARPS = 1  # many small programs hide latency


class QKNormRopeConfig(NamedTuple):
    """Sizes of an attention layer, and what is applied to its QKV rows.

    Attributes:
        eps: of the norms; not used without norms.
        clip: > 0: clamps normed q and k, and v, to [-clip, clip]. None: no clipping.
        pair_stride: distance of the two dimensions of a rotated pair, at least rotary_dim/2, its default: pair i is the
            dimensions i and i + pair_stride.
        v_norm: v is normed per head, without a weight.
        v_from_k: rows have no V heads; v is computed from the unmodified K heads.
    """

    heads: int
    kv_heads: int
    eps: float
    clip: float | None = None
    pair_stride: int | None = None
    v_norm: bool = False
    v_from_k: bool = False


def qk_norm_rope_reference(
    qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None, config: QKNormRopeConfig,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Splits fused QKV rows, and applies norm (with weights), clipping and rotary embedding to q and k.

    Args:
        qkv: [rows, (heads + 2 * kv_heads) * head_dim]: all Q heads, all K, all V. May be overwritten.
        positions: int64 [rows], each below len(table).
        table: [positions, rotary_dim], float32 or float64: cosines, then sines, of rotary_dim/2 frequencies.
        q_weight, k_weight: [head_dim]; both None for no norm.

    Returns:
        q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim], contiguous, in qkv's dtype (rounded once, after
        the rotation).
    """
    heads, kv_heads, eps, clip, pair_stride, v_norm, v_from_k = config
    up, split = wide(qkv.dtype), [heads, kv_heads] if v_from_k else [heads, kv_heads, kv_heads]
    q, k, *others = qkv.unflatten(1, (sum(split), -1)).split(split, dim=1)
    v = others[0] if others else k
    if v_norm:
        v = rms_norm_reference(v, None, eps)
    weighted = [(x.to(up), weight) for x, weight in ((q, q_weight), (k, k_weight))]
    x = torch.cat([x if weight is None else rms_norm_reference(x, weight, eps) for x, weight in weighted], dim=1)
    if clip is not None:
        x, v = x.clamp(-clip, clip), v.clamp(-clip, clip)
    cos, sin = table[positions].to(up).unsqueeze(1).chunk(2, dim=-1)
    pairs = cos.shape[-1]
    gap = (pair_stride or pairs) - pairs
    first, middle, second, rest = x.split([pairs, gap, pairs, x.shape[-1] - 2 * pairs - gap], dim=-1)
    x = torch.cat([first * cos - second * sin, middle, second * cos + first * sin, rest], dim=-1).to(qkv.dtype)
    return x[:, :heads].contiguous(), x[:, heads:].contiguous(), v.contiguous()


def qk_norm_rope_and_cache_reference(
    qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None, config: QKNormRopeConfig, slots: torch.Tensor, k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Returns q of `qk_norm_rope_reference` and stores k and v as `write_kv_reference` does."""
    q, k, v = qk_norm_rope_reference(qkv, positions, table, q_weight, k_weight, config)
    write_kv_reference(k, v, slots, k_cache, v_cache)
    return q


@triton.jit
def _qk_norm_rope_and_cache(
    qkv_ptr, positions_ptr, table_ptr, q_weight_ptr, k_weight_ptr, slots_ptr, q_ptr, k_ptr, v_ptr, eps, clip,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr,
    HEADS_PER_PROGRAM: tl.constexpr, DIM_P2: tl.constexpr, NORM: tl.constexpr, CLIP: tl.constexpr,
    PAIR_STRIDE: tl.constexpr, V_NORM: tl.constexpr, V_FROM_K: tl.constexpr,
    PAGE: tl.constexpr, PIECE: tl.constexpr,
    K_PAGE: tl.constexpr, K_TOKEN: tl.constexpr, K_HEAD: tl.constexpr, K_PIECE: tl.constexpr,
    V_PAGE: tl.constexpr, V_TOKEN: tl.constexpr, V_HEAD: tl.constexpr, V_NUMBER: tl.constexpr,
):  # fmt: skip
    """Processes HEADS_PER_PROGRAM heads of a row per program, in the order Q, K, V, as one [heads, dim] tile."""
    HALF: tl.constexpr = ROTARY // 2
    STORED: tl.constexpr = HEADS + KV_HEADS if V_FROM_K else HEADS + 2 * KV_HEADS
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_PER_PROGRAM + tl.arange(0, HEADS_PER_PROGRAM)[:, None]
    dim = tl.arange(0, DIM_P2)[None, :]
    is_q, is_k = head < HEADS, (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    is_rotated = is_q | is_k
    ok = (is_rotated | is_v) & (dim < DIM)
    source = head
    if V_FROM_K:
        source = tl.where(is_v, source - KV_HEADS, source)
    raw = tl.load(qkv_ptr + row * (STORED * DIM) + (source * DIM + dim), mask=ok, other=0.0)
    x = raw.to(tl.float32)

    # the other dimension of each pair: a second load, from cache, is cheaper than a shuffle
    is_first, is_second = dim < HALF, (dim >= PAIR_STRIDE) & (dim < PAIR_STRIDE + HALF)
    in_rotary = is_first | is_second
    partner = tl.where(is_first, dim + PAIR_STRIDE, tl.where(is_second, dim - PAIR_STRIDE, dim))
    other = tl.load(qkv_ptr + row * (STORED * DIM) + (source * DIM + partner), mask=is_rotated & in_rotary, other=0.0)
    other = other.to(tl.float32)
    q_ok, k_ok = is_q & (dim < DIM), is_k & (dim < DIM)
    v = raw
    if NORM or V_NORM:
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / DIM + eps)
    if V_NORM:
        v = (x * scale[:, None]).to(raw.dtype)
    if NORM:
        inside = dim < DIM
        q_weight, k_weight = tl.load(q_weight_ptr + dim, mask=inside), tl.load(k_weight_ptr + dim, mask=inside)
        x = x * scale[:, None] * tl.where(is_q, q_weight, k_weight).to(tl.float32)
        q_weight, k_weight = tl.load(q_weight_ptr + partner, mask=inside), tl.load(k_weight_ptr + partner, mask=inside)
        other = other * scale[:, None] * tl.where(is_q, q_weight, k_weight).to(tl.float32)
    if CLIP:
        x = tl.minimum(tl.maximum(x, -clip), clip)
        other = tl.minimum(tl.maximum(other, -clip), clip)
        v = tl.minimum(tl.maximum(v.to(tl.float32), -clip), clip).to(raw.dtype)

    position = tl.load(positions_ptr + row)
    angle = position * ROTARY + tl.where(is_first, dim, dim - PAIR_STRIDE)
    cos = tl.load(table_ptr + angle, mask=in_rotary, other=1.0)
    sin = tl.load(table_ptr + angle + HALF, mask=in_rotary, other=0.0)
    x = x * cos + tl.where(is_first, -other, other) * sin

    tl.store(q_ptr + row * (HEADS * DIM) + (head * DIM + dim), x.to(q_ptr.dtype.element_ty), mask=q_ok)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    page, offset = slot // PAGE, slot % PAGE
    number = dim
    if PIECE < DIM:
        number = dim // PIECE * K_PIECE + dim % PIECE
    valid = slot >= 0
    k_at = k_ptr + (page * K_PAGE + offset * K_TOKEN) + ((head - HEADS) * K_HEAD + number)
    tl.store(k_at, x.to(raw.dtype).to(k_ptr.dtype.element_ty), mask=k_ok & valid)
    v_at = v_ptr + (page * V_PAGE + offset * V_TOKEN) + ((head - HEADS - KV_HEADS) * V_HEAD + dim * V_NUMBER)
    tl.store(v_at, v.to(v_ptr.dtype.element_ty), mask=is_v & (dim < DIM) & valid)


def qk_norm_rope_and_cache(
    qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None, config: QKNormRopeConfig, slots: torch.Tensor, k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Computes `qk_norm_rope_and_cache_reference` for contiguous rows on a GPU."""
    heads, kv_heads, eps, clip, pair_stride, v_norm, v_from_k = config
    rows, dim = len(qkv), qkv.shape[1] // (heads + (1 if v_from_k else 2) * kv_heads)
    norm = q_weight is not None and k_weight is not None
    every, heads_per_prog = heads + 2 * kv_heads, heads_per_program(heads + 2 * kv_heads, dim, TILE)
    q = qkv.new_empty(rows, heads, dim)
    _qk_norm_rope_and_cache[(rows, triton.cdiv(every, heads_per_prog))](
        qkv, positions, table, q_weight if norm else qkv, k_weight if norm else qkv, slots, q, k_cache, v_cache, eps,
        clip or 0.0, HEADS=heads, KV_HEADS=kv_heads, DIM=dim, ROTARY=table.shape[1],
        HEADS_PER_PROGRAM=heads_per_prog, DIM_P2=triton.next_power_of_2(dim),
        NORM=norm, CLIP=clip is not None, PAIR_STRIDE=pair_stride or table.shape[1] // 2, V_NORM=v_norm,
        V_FROM_K=v_from_k, **page_strides(k_cache, v_cache), num_warps=WARPS,
    )  # fmt: skip
    return q

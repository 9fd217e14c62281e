"""New keys and values into the paged pool."""

from __future__ import annotations

import torch

from runtime.kernels.heads import heads_together
from runtime.kernels.pages import strides, write, write_keys
from runtime.kernels.triton_import import tl, triton


def write_kv_reference(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """Store row r of k and v [rows, kv_heads, head_dim] at slot ``slots[r]`` (int64) of one layer's pages (see
    ``runtime.kernels.pages``). Slots of one call are distinct; -1 is stored nowhere."""
    if int(slots.min()) < 0:
        alive = slots >= 0
        k, v, slots = k[alive], v[alive], slots[alive]
    write_keys(k_cache, slots, k)
    write(v_cache, slots, v)


@triton.jit
def _write_kv(
    k_ptr, v_ptr, slots_ptr, k_cache_ptr, v_cache_ptr,
    HEADS: tl.constexpr, DIM: tl.constexpr, TOGETHER: tl.constexpr, DIM_P2: tl.constexpr,
    PAGE: tl.constexpr, PIECE: tl.constexpr,
    K_PAGE: tl.constexpr, K_TOKEN: tl.constexpr, K_HEAD: tl.constexpr, K_PIECE: tl.constexpr,
    V_PAGE: tl.constexpr, V_TOKEN: tl.constexpr, V_HEAD: tl.constexpr, V_NUMBER: tl.constexpr,
):  # fmt: skip
    """One program: TOGETHER of a row's key heads, then as many value heads."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)[:, None]
    dim = tl.arange(0, DIM_P2)[None, :]
    slot = tl.load(slots_ptr + row).to(tl.int64)
    page, offset = slot // PAGE, slot % PAGE
    ok = (head < HEADS) & (dim < DIM) & (slot >= 0)
    source = (row * HEADS + head) * DIM + dim
    number = dim
    if PIECE < DIM:
        number = dim // PIECE * K_PIECE + dim % PIECE
    k = tl.load(k_ptr + source, mask=ok)
    v = tl.load(v_ptr + source, mask=ok)
    k_at = k_cache_ptr + page * K_PAGE + offset * K_TOKEN + head * K_HEAD + number
    v_at = v_cache_ptr + page * V_PAGE + offset * V_TOKEN + head * V_HEAD + dim * V_NUMBER
    tl.store(k_at, k.to(k_cache_ptr.dtype.element_ty), mask=ok)
    tl.store(v_at, v.to(v_cache_ptr.dtype.element_ty), mask=ok)


def write_kv(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """`write_kv_reference` for contiguous rows on a GPU."""
    rows, heads, dim = k.shape
    together = heads_together(heads, dim)
    _write_kv[(rows, triton.cdiv(heads, together))](
        k, v, slots, k_cache, v_cache, HEADS=heads, DIM=dim, TOGETHER=together, DIM_P2=triton.next_power_of_2(dim),
        **strides(k_cache, v_cache), num_warps=4,
    )  # fmt: skip

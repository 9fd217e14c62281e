"""New keys and values into the paged pool."""

from __future__ import annotations

import torch

from runtime.kernels.triton_import import tl, triton


def write_kv_reference(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """Store row r of k and v [rows, kv_heads, head_dim] at slot ``slots[r]`` (page * page_size + offset, int64) of
    one layer's pages [pages, page_size, kv_heads, head_dim]. Slots of one call are distinct; -1 is stored nowhere."""
    if int(slots.min()) < 0:
        alive = slots >= 0
        k, v, slots = k[alive], v[alive], slots[alive]
    k_cache.view(-1, *k.shape[1:])[slots] = k.to(k_cache.dtype)
    v_cache.view(-1, *v.shape[1:])[slots] = v.to(v_cache.dtype)


@triton.jit
def _write_kv(k_ptr, v_ptr, slots_ptr, k_cache_ptr, v_cache_ptr, SIZE: tl.constexpr, SIZE_P2: tl.constexpr):
    """One program a row: all its key heads, then all its value heads."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    ok = (column < SIZE) & (slot >= 0)
    at = slot * SIZE + column
    k = tl.load(k_ptr + row * SIZE + column, mask=ok)
    v = tl.load(v_ptr + row * SIZE + column, mask=ok)
    tl.store(k_cache_ptr + at, k.to(k_cache_ptr.dtype.element_ty), mask=ok)
    tl.store(v_cache_ptr + at, v.to(v_cache_ptr.dtype.element_ty), mask=ok)


def write_kv(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """`write_kv_reference` for contiguous rows and pools on a GPU."""
    size = k.shape[1] * k.shape[2]
    _write_kv[(len(k),)](
        k, v, slots, k_cache, v_cache, SIZE=size, SIZE_P2=triton.next_power_of_2(size), num_warps=4
    )  # fmt: skip

"""New keys and values into the paged pool."""

from __future__ import annotations

import torch


def write_kv_reference(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """Store row r of k and v [rows, kv_heads, head_dim] at slot ``slots[r]`` (page * page_size + offset, int64) of
    one layer's pools [pages, page_size, kv_heads, head_dim]. Slots of one call are distinct."""
    k_cache.view(-1, *k.shape[1:])[slots] = k.to(k_cache.dtype)
    v_cache.view(-1, *v.shape[1:])[slots] = v.to(v_cache.dtype)

"""New keys and values into the paged pool, in torch. On a GPU a kernel of ``rotary_and_cache.py`` stores them."""

from __future__ import annotations

import torch

from runtime.kernels.pages import write, write_keys


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

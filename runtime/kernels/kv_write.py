"""Write of new keys and values to the paged pool in torch. The GPU kernel is in ``rotary_and_cache.py``."""

from __future__ import annotations

import torch

from runtime.kernels.pages import write, write_keys


def write_kv_reference(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """Stores row r of k and v [rows, kv_heads, head_dim] at slot ``slots[r]`` of one layer's pages
    (``runtime.kernels.pages``).

    Slots (int64) are distinct; rows with slot -1 are not stored.
    """
    if int(slots.min()) < 0:
        valid = slots >= 0
        k, v, slots = k[valid], v[valid], slots[valid]
    write_keys(k_cache, slots, k)
    write(v_cache, slots, v)

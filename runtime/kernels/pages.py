"""A layer's pages as kernels see them, whatever the pool's layout: two tensors whose strides say where everything lies.

``k_cache[page, offset, head, piece]`` is a piece of a key, its numbers side by side; as many pieces as it takes are one
key, and what the last one has beyond the key's numbers means nothing. ``v_cache[page, offset, head]`` is one value. A
row stored at slot s is at offset ``s % page_size`` of page ``s // page_size``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def strides(k_cache: torch.Tensor, v_cache: torch.Tensor) -> dict[str, int]:
    """The layout, as the constants that the kernels take; like for all pools of like pages and heads."""
    k_page, k_token, k_head, k_piece, _ = k_cache.stride()
    v_page, v_token, v_head, v_number = v_cache.stride()
    return {
        "PAGE": k_cache.shape[1], "PIECE": k_cache.shape[4],
        "K_PAGE": k_page, "K_TOKEN": k_token, "K_HEAD": k_head, "K_PIECE": k_piece,
        "V_PAGE": v_page, "V_TOKEN": v_token, "V_HEAD": v_head, "V_NUMBER": v_number,
    }  # fmt: skip


def keys_at(k_cache: torch.Tensor, pages: torch.Tensor, offsets: torch.Tensor, dim: int) -> torch.Tensor:
    """The keys [..., heads, dim] at `pages` and `offsets` [...]."""
    return k_cache[pages, offsets].flatten(-2)[..., :dim]


def put_keys(k_cache: torch.Tensor, pages: torch.Tensor, offsets: torch.Tensor, k: torch.Tensor) -> None:
    """Store k [..., heads, dim] at `pages` and `offsets` [...]."""
    pieces, piece = k_cache.shape[3:]
    k = F.pad(k, (0, pieces * piece - k.shape[-1])).unflatten(-1, (pieces, piece))
    k_cache[pages, offsets] = k.to(k_cache.dtype)

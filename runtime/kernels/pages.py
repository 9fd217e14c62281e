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


def read(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[*slots.shape, heads, ...]: what either tensor holds at `slots`, in torch."""
    if cache.is_contiguous():  # a token's numbers follow each other: they are copied as one
        tokens = cache.flatten(0, 1).flatten(1).index_select(0, slots.flatten())
        return tokens.view(*slots.shape, *cache.shape[2:])
    return cache[slots // cache.shape[1], slots % cache.shape[1]]


def write(cache: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Store `values` [rows, heads, ...] at `slots` [rows] of either tensor, in torch."""
    values = values.to(cache.dtype)
    if cache.is_contiguous():
        cache.flatten(0, 1).flatten(1).index_copy_(0, slots, values.flatten(1))
    else:
        cache[slots // cache.shape[1], slots % cache.shape[1]] = values


def read_keys(k_cache: torch.Tensor, slots: torch.Tensor, dim: int) -> torch.Tensor:
    """Keys [*slots.shape, heads, dim], put together from their pieces."""
    return read(k_cache, slots).flatten(-2)[..., :dim]


def write_keys(k_cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor) -> None:
    """Store keys [rows, heads, dim], cut into pieces."""
    pieces, piece = k_cache.shape[3:]
    write(k_cache, slots, F.pad(k, (0, pieces * piece - k.shape[-1])).unflatten(-1, (pieces, piece)))

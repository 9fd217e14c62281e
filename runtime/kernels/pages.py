"""Pages of one layer as the kernels see them: two tensors whose strides define the layout of the pool.

``k_cache[page, offset, head, piece]`` is a contiguous piece of a key. The pieces of a key follow each other, and the
last one may be padded. ``v_cache[page, offset, head]`` is one value vector. Slot s is offset ``s % page_size`` of page
``s // page_size``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def strides(k_cache: torch.Tensor, v_cache: torch.Tensor) -> dict[str, int]:
    """Returns the layout as the kernels' constants; equal for all pools of equal pages and heads."""
    k_page, k_token, k_head, k_piece, _ = k_cache.stride()
    v_page, v_token, v_head, v_number = v_cache.stride()
    return {
        "PAGE": k_cache.shape[1], "PIECE": k_cache.shape[4],
        "K_PAGE": k_page, "K_TOKEN": k_token, "K_HEAD": k_head, "K_PIECE": k_piece,
        "V_PAGE": v_page, "V_TOKEN": v_token, "V_HEAD": v_head, "V_NUMBER": v_number,
    }  # fmt: skip


def read(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Returns [*slots.shape, heads, ...] of either tensor at `slots`, in torch."""
    if cache.is_contiguous():  # a token is contiguous and copied at once
        tokens = cache.flatten(0, 1).flatten(1).index_select(0, slots.flatten())
        return tokens.view(*slots.shape, *cache.shape[2:])
    return cache[slots // cache.shape[1], slots % cache.shape[1]]


def write(cache: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Stores `values` [rows, heads, ...] at `slots` [rows] of either tensor, in torch."""
    values = values.to(cache.dtype)
    if cache.is_contiguous():
        cache.flatten(0, 1).flatten(1).index_copy_(0, slots, values.flatten(1))
    else:
        cache[slots // cache.shape[1], slots % cache.shape[1]] = values


def read_keys(k_cache: torch.Tensor, slots: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns keys [*slots.shape, heads, dim], assembled from their pieces."""
    return read(k_cache, slots).flatten(-2)[..., :dim]


def write_keys(k_cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor) -> None:
    """Stores keys [rows, heads, dim], cut into pieces."""
    pieces, piece = k_cache.shape[3:]
    write(k_cache, slots, F.pad(k, (0, pieces * piece - k.shape[-1])).unflatten(-1, (pieces, piece)))

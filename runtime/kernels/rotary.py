"""Per-head q/k RMSNorm and partial NeoX rotary embedding, in one pass over the fused QKV rows (models.md 1)."""

from __future__ import annotations

import torch

from runtime.kernels.precision import wide
from runtime.kernels.rms_norm import rms_norm_reference


def qk_norm_rotary_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    heads: int,
    kv_heads: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split fused rows into normed, rotated q and k, and v.

    Args:
        qkv: [rows, (heads + 2 * kv_heads) * head_dim]: all Q heads, all K, all V. May be overwritten.
        positions: int64 [rows], each below len(table).
        table: [positions, rotary_dim], float32 or float64: cosines, then sines, of rotary_dim/2 frequencies.
        q_weight, k_weight: [head_dim].

    Returns:
        q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim], in qkv's dtype (rounded once, after rotation).
    """
    q, k, v = qkv.unflatten(1, (heads + 2 * kv_heads, -1)).split([heads, kv_heads, kv_heads], dim=1)
    up = wide(qkv.dtype)
    cos, sin = table[positions].to(up).unsqueeze(1).chunk(2, dim=-1)
    rotated = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        x = rms_norm_reference(x.to(up), weight, eps)
        half = cos.shape[-1]
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        x = torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
        rotated.append(x.to(qkv.dtype))
    return rotated[0], rotated[1], v

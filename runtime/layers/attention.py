"""Paged block-diffusion attention: what an implementation is made for, and what it offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import LayerKV


@dataclass(frozen=True)
class AttentionShape:
    """`heads` query heads share `kv_heads` key heads, heads/kv_heads consecutive ones each; scores are scaled by
    `scale`."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


class BatchAttention(Protocol):
    """Attention over one batch: what depends on the batch alone has been worked out, for every layer."""

    def attend(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        """q [rows, heads, head_dim] over a layer's pages, which hold the K/V of the batch's rows already -> like q."""
        ...


class Attention(Protocol):
    """One implementation, built for one shape, device and dtype.

    What a row sees is the batch's to say (``ForwardBatch``). Softmax and sums run in float32 (float64 for float64).
    """

    def plan(self, batch: ForwardBatch, window: int | None = None) -> BatchAttention:
        """Once a forward, for its layers that have this window."""
        ...

"""Interface of paged block-diffusion attention implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import LayerKV


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of an attention layer: consecutive groups of heads / kv_heads query heads read one KV head. Scores are
    scaled by `scale`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


class BatchAttention(Protocol):
    """Attention over one batch, with all metadata that depends on the batch alone."""

    def run(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        """q [rows, heads, head_dim] over a layer's pages, which already hold the K/V of the batch -> like q."""
        ...


class Attention(Protocol):
    """One implementation, created for one shape, device and dtype.

    The batch defines the visible keys (``ForwardBatch``). Softmax and sums run in float32 (float64 for float64).
    """

    def prepare_metadata(self, batch: ForwardBatch, window: int | None = None) -> BatchAttention:
        """Called once per forward for all layers with this window."""
        ...

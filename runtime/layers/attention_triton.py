"""Paged block-diffusion attention with Triton, for CUDA."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.paged_attention import paged_attention
from runtime.layers.attention import AttentionShape
from runtime.layers.kv_pool import LayerKV


@dataclass(frozen=True)
class _BatchAttention:
    batch: ForwardBatch
    window: int | None
    scale: float
    grouped: bool
    batch_invariant: bool

    def run(self, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        return paged_attention(
            q,
            kv.k,
            kv.v,
            self.batch,
            scale=self.scale,
            window=self.window,
            grouped=self.grouped,
            batch_invariant=self.batch_invariant,
        )


class TritonAttention:
    """See ``runtime.layers.attention.Attention``. The kernel reads the batch's tensors directly.

    `batch_invariant`: the bits of a row do not depend on the batch.
    """

    def __init__(self, shape: AttentionShape, *, grouped: bool, batch_invariant: bool = False) -> None:
        self.shape = shape
        self.grouped = grouped
        self.batch_invariant = batch_invariant

    def prepare_metadata(self, batch: ForwardBatch, window: int | None = None) -> _BatchAttention:
        return _BatchAttention(batch, window, self.shape.scale, self.grouped, self.batch_invariant)

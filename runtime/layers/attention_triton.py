"""Paged block-diffusion attention through Triton, for CUDA."""

from __future__ import annotations

import torch

from runtime.kernels.batch import ForwardBatch
from runtime.kernels.paged_attention import paged_attention
from runtime.layers.attention import AttentionShape
from runtime.layers.kv_pool import LayerKV

Plan = tuple[ForwardBatch, int | None]


class TritonAttention:
    """See ``runtime.layers.attention.Attention``. The kernel reads the batch's own tensors; nothing to plan."""

    def __init__(self, shape: AttentionShape, *, grouped: bool) -> None:
        self.shape = shape
        self.grouped = grouped

    def plan(self, batch: ForwardBatch, window: int | None = None) -> Plan:
        return batch, window

    def attend(self, q: torch.Tensor, kv: LayerKV, plan: Plan) -> torch.Tensor:
        batch, window = plan
        return paged_attention(q, kv.k, kv.v, batch, scale=self.shape.scale, window=window, grouped=self.grouped)

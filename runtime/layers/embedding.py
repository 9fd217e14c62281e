"""Token embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from runtime.layers.linear import empty_parameter


class Embedding(nn.Module):
    """int64 ids [rows] -> [rows, hidden]; unfilled."""

    def __init__(self, vocab_size: int, hidden: int, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = empty_parameter(vocab_size, hidden, device=device, dtype=dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)

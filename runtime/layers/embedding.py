"""Token embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from runtime.layers.build import Build


class Embedding(nn.Module):
    """int64 ids [rows] -> [rows, hidden]; unfilled."""

    def __init__(self, build: Build, vocab_size: int, hidden: int) -> None:
        super().__init__()
        self.weight = build.parameter(vocab_size, hidden)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)

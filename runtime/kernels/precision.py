"""The one rule of precision: sums, norms, softmax and routing run in float32, and in float64 where the model does."""

from __future__ import annotations

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float64 stays float64, everything narrower becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32

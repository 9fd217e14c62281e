"""Accumulation dtype: sums, norms, softmax and routing run in float32, or float64 for a float64 model."""

from __future__ import annotations

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype to compute in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32

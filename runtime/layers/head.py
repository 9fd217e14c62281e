"""The head's product, whose result is never rounded below float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.precision import wide

HEAD_CHUNK = 8192  # vocabulary rows widened at a time where the device cannot accumulate wide by itself


def head_logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[n, hidden] times [vocab, hidden]^T -> [n, vocab], float32 from the accumulator on (decoding.md 1); float64 for
    float64."""
    up = wide(hidden.dtype)
    if hidden.dtype == up:
        return F.linear(hidden, weight)
    if hidden.is_cuda:
        return torch.mm(hidden, weight.t(), out_dtype=up)
    hidden = hidden.to(up)
    return torch.cat([F.linear(hidden, part.to(up)) for part in torch.split(weight, HEAD_CHUNK)], dim=-1)

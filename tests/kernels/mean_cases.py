"""The mean of embeddings against float64, as `cases.py`."""

from __future__ import annotations

import torch

from runtime.kernels.mean import mean, mean_reference
from tests.kernels.cases import assert_near, random


def distributions(rows: int, ids: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Flat ones and such as have hardly more than one id."""
    logits = random(rows, ids, dtype=torch.float32, device=device, seed=90)
    return (logits * torch.linspace(0.1, 12, rows, device=device)[:, None]).softmax(1).to(dtype)


def check_mean(rows: int, ids: int, size: int, dtype: torch.dtype, device: str) -> None:
    probs, table = distributions(rows, ids, dtype, device), random(ids, size, dtype=dtype, device=device, seed=91)
    assert_near(mean(probs, table), mean_reference(probs.double(), table.double()), dtype)

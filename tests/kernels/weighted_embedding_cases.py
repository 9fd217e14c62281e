"""The mean of embeddings against float64, as `cases.py`."""

from __future__ import annotations

import torch

from runtime.kernels.weighted_embedding import soft_embedding, soft_embedding_reference
from tests.kernels.cases import assert_near, random


def distributions(rows: int, ids: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Flat ones and such as have hardly more than one id."""
    logits = random(rows, ids, dtype=torch.float32, device=device, seed=90)
    return (logits * torch.linspace(0.1, 12, rows, device=device)[:, None]).softmax(1).to(dtype)


def multiplied(probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiples by powers of 2, which round nothing, as far from 1 as what is large of a row has room for; and by which
    they are."""
    powers = (3, -3) if probs.dtype == torch.float16 else (96, -70)
    divisor = 2 ** torch.linspace(*powers, len(probs), device=probs.device).round()
    return (probs.float() * divisor[:, None]).to(probs.dtype), divisor


def check_mean(rows: int, ids: int, size: int, dtype: torch.dtype, device: str) -> None:
    probs, table = distributions(rows, ids, dtype, device), random(ids, size, dtype=dtype, device=device, seed=91)
    expected = probs.double() @ table.double()
    assert_near(soft_embedding(probs, table), expected, dtype)
    multiples, divisor = multiplied(probs)
    for made in (soft_embedding, soft_embedding_reference):
        got = made(multiples, table, divisor)
        assert got.dtype == dtype
        assert_near(got, expected, dtype)

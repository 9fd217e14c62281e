"""Checks of the soft embedding against float64 references, like those in `cases.py`."""

import torch

from runtime.kernels.weighted_embedding import soft_embedding, soft_embedding_reference
from tests.kernels.cases import assert_near, random


def distributions(rows: int, ids: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Returns distributions from almost flat to almost one-hot."""
    logits = random(rows, ids, dtype=torch.float32, device=device, seed=90)
    return (logits * torch.linspace(0.1, 12, rows, device=device)[:, None]).softmax(1).to(dtype)


def multiplied(probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the distributions multiplied by powers of 2, and these factors.

    Powers of 2 cause no rounding. They range as far from 1 as the large elements of a row stay representable.
    """
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

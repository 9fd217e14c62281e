"""Tests of the torch soft embedding under scaled distributions. interpreted.py has those of the kernel."""

import pytest
import torch

from runtime.kernels.weighted_embedding import soft_embedding_reference

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_mean_under_scaled_distributions_is_rounded_once(monkeypatch, dtype):
    """The error does not depend on the factors as long as the dtype can represent the scaled weights."""
    monkeypatch.setattr("runtime.kernels.weighted_embedding.WIDE_CHUNK", 11)
    random = torch.Generator().manual_seed(1)
    table = torch.randn(40, 6, generator=random).to(dtype)
    times = torch.tensor([1.0, 3.0, 0.1] if dtype == torch.float16 else [2.0**96, 3.0, 2.0**-70], dtype=torch.float64)
    probs = torch.randn(3, 40, dtype=torch.float64, generator=random).mul(3).softmax(1)
    multiples = (times[:, None] * probs).to(dtype)
    expected = multiples.double() @ table.double() / times[:, None]
    got = soft_embedding_reference(multiples, table, times.to(torch.promote_types(dtype, torch.float32)))
    assert got.dtype == dtype
    close = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), expected, rtol=close, atol=4e-6 if dtype != torch.float64 else 1e-12)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_mean_under_distributions_of_another_dtype(dtype):
    random = torch.Generator().manual_seed(2)
    table = torch.randn(9, 4, generator=random).to(dtype)
    probs = torch.randn(3, 9, dtype=torch.float64, generator=random).softmax(1)
    expected = probs.to(dtype) @ table
    assert torch.equal(soft_embedding_reference(probs, table), expected)
    ones = torch.ones(3, dtype=torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(soft_embedding_reference(probs, table, ones), expected)

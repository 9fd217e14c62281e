"""Tests of soft embeddings against their definition in Python (docs/research/decoding-rules.md#soft-embeddings)."""

import math

import pytest
import torch

from runtime.layers.embedding import soft_token_embeddings

VOCAB, HIDDEN, MASK = 12, 5, 11


def by_hand(table: list[list[float]], own: int, mixture: list[tuple[int, float]], how: tuple[bool, float, bool]):
    smooth, weight, renormalize = how

    def length(x: list[float]) -> float:
        return math.sqrt(sum(v * v for v in x))

    known = [sum(prob * table[id][d] for id, prob in mixture) for d in range(HIDDEN)]
    if smooth:
        return [table[own][d] + weight * known[d] for d in range(HIDDEN)]
    rest = 1 - sum(prob for _, prob in mixture)
    out = [known[d] + rest * table[MASK][d] for d in range(HIDDEN)]
    if renormalize:
        target = sum(prob * length(table[id]) for id, prob in mixture) + rest * length(table[MASK])
        out = [v * target / (length(out) + 1e-6) for v in out]
    return out


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 8e-3)]
)
@pytest.mark.parametrize("count", [1, 3])
def test_each_row_has_its_own_soft_embedding_parameters(dtype: torch.dtype, tolerance: float, count: int) -> None:
    random = torch.Generator().manual_seed(count)
    table = torch.randn(VOCAB, HIDDEN, generator=random, dtype=torch.float64).to(dtype)
    hows = [(smooth, weight, flag) for smooth in (False, True) for weight in (0.0, 0.5, 2.0) for flag in (False, True)]
    n = len(hows)
    tokens = torch.randint(VOCAB, (n,), generator=random)
    ids = torch.stack([torch.randperm(VOCAB, generator=random)[:count] for _ in range(n)])
    probs = torch.rand(n, count, generator=random, dtype=torch.float64) / count
    probs[0, 0], probs[-1] = 0, 0  # one token without weight; a row without any
    smooth, weight, renormalize = torch.tensor(hows, dtype=torch.float64).unbind(1)
    got = soft_token_embeddings(
        lambda ids: table[ids], table[tokens], ids, probs, MASK,
        smooth=smooth > 0, weight=weight, renormalize=renormalize > 0,
    )  # fmt: skip
    assert got.dtype == dtype
    table_rows = table.double().tolist()
    expected = [
        by_hand(table_rows, tokens[i].item(), list(zip(ids[i].tolist(), probs[i].tolist(), strict=True)), hows[i])
        for i in range(n)
    ]
    torch.testing.assert_close(
        got.double(), torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def test_bfloat16_embeddings_are_summed_in_float32() -> None:
    """Many small terms would be lost if each addition rounded to bfloat16."""
    table = torch.full((VOCAB, 1), 1.0, dtype=torch.bfloat16)
    table[0] = 256.0
    ids = torch.arange(9)[None]
    probs = torch.tensor([[0.5, *[0.0625] * 8]])
    no = torch.tensor([False])
    got = soft_token_embeddings(
        lambda ids: table[ids], table[:1], ids, probs, MASK, smooth=no, weight=torch.ones(1), renormalize=no
    )
    assert got.item() == torch.tensor(128.5).bfloat16().item()
    assert soft_token_embeddings(
        lambda ids: table[ids], table[:0], ids[:0], probs[:0], MASK, smooth=no[:0], weight=torch.ones(0),
        renormalize=no[:0],
    ).shape == (0, 1)  # fmt: skip

"""Checks of the softmax statistics and the soft embedding against float64 references, like those in `cases.py`."""

import torch

from runtime.kernels import fused_softmax_stats
from runtime.kernels.fused_softmax_stats import SoftmaxStats, StatsRequest, softmax_stats, softmax_stats_reference
from runtime.kernels.weighted_embedding import soft_embedding, soft_embedding_reference
from tests.kernels.cases import TOLERANCE, random

CAP = 9.0


def check_describe(
    rows: int, vocab: int, mask_id: int | None, max_token_id: int, coolest: float, dtype: torch.dtype, device: str
) -> None:
    """Compares `softmax_stats` with its reference, for flat logits and for logits at the softcap.

    Args:
        coolest: Lowest temperature. At 0.2 the weights of all tokens are representable.
    """
    generator = torch.Generator().manual_seed(rows)
    steep = torch.linspace(0.4, 12, rows)[torch.randperm(rows, generator=generator)].to(device)
    logits = random(rows, vocab, dtype=torch.float32, device=device, seed=61) * steep[:, None]
    logits[:, vocab // 2] = logits[:, vocab // 3] = logits.amax(1)  # ties: the lowest id wins
    temperature = (coolest * (1 + 5 * torch.rand(rows, generator=generator, dtype=torch.float64))).to(device)
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    uniform[::5] = -1
    uniform[1::7] = 1 - 2**-53
    slack = max(1.0, 0.2 / coolest)  # division by the temperature magnifies a logit's rounding error
    for draws in (uniform.to(device), None):
        request = StatsRequest(temperature, draws, CAP, mask_id, max_token_id, dtype)
        got = softmax_stats(logits, request)
        expected = softmax_stats_reference(logits.double(), request._replace(probs=torch.float64))
        assert torch.equal(got.argmax, expected.argmax)
        torch.testing.assert_close(got.entropy.double(), expected.entropy, rtol=1e-5 * slack, atol=1e-6 * slack)
        chosen = expected.probs.gather(1, got.token[:, None])[:, 0]
        torch.testing.assert_close(got.conf.double(), chosen, rtol=1e-4 * slack, atol=1e-9)
        assert bool((chosen > 0).all())
        if draws is not None:  # the reference's token, or one that differs by rounding only
            after = expected.probs.cumsum(1).gather(1, got.token[:, None])[:, 0]
            drawn, near = draws >= 0, 1e-6 * slack
            assert bool(((after > draws - near) & (after - chosen <= draws + near))[drawn].all())
            assert int(((got.token != expected.token) & (draws < 0.999)).sum()) <= rows // 50
            assert torch.equal(got.token[~drawn], got.argmax[~drawn])
        else:
            assert torch.equal(got.token, got.argmax)
        _check_weights(got, expected.probs, slack)
        if dtype == torch.float16:
            assert bool((got.probs.amax(1) == fused_softmax_stats.HALF_MAX).all())
        else:
            again = got.divisor == 1
            assert bool(again.any()) == (coolest < 0.2)
            assert not again.all(), "no row's weights were written before its sum was known"
    assert softmax_stats(logits, request._replace(probs=None))[4:] == (None, None)


def check_hot(rows: int, vocab: int, dtype: torch.dtype, device: str) -> None:
    """Checks that sums of large embeddings do not overflow at a temperature that makes all weights large."""
    logits = random(rows, vocab, dtype=torch.float32, device=device, seed=63)
    temperature = torch.full((rows,), 1e3, dtype=torch.float64, device=device)
    request = StatsRequest(temperature, None, CAP, None, vocab - 1, dtype)
    expected = softmax_stats_reference(logits.double(), request._replace(probs=torch.float64))
    _check_weights(softmax_stats(logits, request), expected.probs, 1.0, size=2.0**12)


def check_sure(rows: int, vocab: int, dtype: torch.dtype, device: str) -> None:
    """Checks that a row with one certain token has exactly its 16-bit embedding, however the weight was rounded."""
    sure = torch.randperm(vocab, generator=torch.Generator().manual_seed(64))[:rows].to(device)
    logits = torch.full((rows, vocab), -4 * CAP, device=device)
    logits[torch.arange(rows, device=device), sure] = torch.linspace(1, 2 * CAP, rows, device=device)
    request = StatsRequest(
        torch.full((rows,), 0.2, dtype=torch.float64, device=device), None, CAP, None, vocab - 1, dtype
    )
    got = softmax_stats(logits, request)
    table = random(vocab, 24, dtype=dtype, device=device, seed=65)
    for made in _means(table, got):
        torch.testing.assert_close(made, table[sure], rtol=1e-6 if dtype == torch.float32 else 0, atol=0)


def _check_weights(got: SoftmaxStats, probs: torch.Tensor, slack: float, size: float = 1.0) -> None:
    """Checks that each row of weights is a multiple of the distribution, and the weighted mean of embeddings."""
    assert bool((got.divisor > 0).all())
    dtype = got.probs.dtype
    bound = TOLERANCE[dtype] + 2e-5 * slack
    assert _error(got.probs.double() / got.divisor.double()[:, None], probs) < bound
    assert not got.probs[:, (probs == 0).all(0)].any(), "a banned id has a weight above 0"
    table = random(probs.shape[1], 24, dtype=dtype, device=probs.device.type, seed=62, scale=size) + 0.5 * size
    for made in _means(table, got):
        assert made.dtype == dtype
        assert _error(made.double(), probs @ table.double()) < bound


def _means(table: torch.Tensor, got: SoftmaxStats) -> list[torch.Tensor]:
    """Returns the soft embeddings of the reference and of the kernel.

    The kernel is left out for bfloat16 on the CPU, because the interpreter's dot product multiplies raw bits.
    """
    made = [soft_embedding_reference(got.probs, table, got.divisor)]
    if table.is_cuda or table.dtype != torch.bfloat16:
        made.append(soft_embedding(got.probs, table, got.divisor))
    return made


def _error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """Returns the largest relative error of a row."""
    return float(((out - reference).norm(dim=1) / reference.norm(dim=1)).max())

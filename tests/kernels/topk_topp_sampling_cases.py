"""Compares the top-k and top-p sampling kernel with its torch reference."""

import torch

from runtime.kernels.topk_topp_sampling import filtered_probs, multinomial, topk_topp_sample
from tests.kernels.cases import random


def check_draw(rows: int, vocab: int, ties: bool, device: str) -> None:
    """Compares rows without a limit, with one and with several, for flat and for peaked distributions.

    Args:
        ties: Many logits are equal.
    """
    generator = torch.Generator().manual_seed(rows + vocab)

    def drawn() -> torch.Tensor:
        return torch.rand(rows, generator=generator, dtype=torch.float64)

    row = torch.arange(rows)
    for free in {0, rows // 2, rows}:
        steep = (0.1 + 9 * drawn()).float()[:, None].to(device)
        logits = random(rows, vocab, dtype=torch.float32, device=device, seed=vocab + free) * steep
        if ties:
            logits = (logits * 2).round() / 2 * torch.where(drawn() < 0.5, -1.0, 1.0).float()[:, None].to(device)
        logits[:, -3:] = logits[:, 2] = float("-inf")  # banned
        temperature, top_p, top_k, min_p = 0.3 + drawn(), drawn(), (drawn() * 20).round(), drawn() * 0.2
        for off, value in ((row % 3 == 0, top_k), (row % 2 == 0, min_p)):
            value[off] = 0.0
        top_p[row % 4 == 0] = 1.0
        top_k[row % 7 == 5] = 2.0 * vocab
        top_p[row < free], top_k[row < free], min_p[row < free] = 1.0, 0.0, 0.0
        params = torch.stack([temperature, top_p, top_k, min_p], 1).to(device)
        uniform = drawn().to(device)
        expected, probability = multinomial(filtered_probs(logits.clone(), params, free), uniform)
        token, conf = topk_topp_sample(logits, params, uniform, num_unfiltered=free)
        other = token != expected
        # Sums just below the uniform number or top-p may be rounded to the other side.
        assert int(other.sum()) <= rows // 20
        assert bool((logits.gather(1, token[:, None]) > float("-inf")).all())
        assert torch.allclose(conf[~other], probability[~other], rtol=1e-5, atol=1e-7)

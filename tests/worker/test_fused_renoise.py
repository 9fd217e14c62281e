"""Tests of the fused softmax statistics for renoising: they equal those of separate operations."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from runtime.algorithms.base import get_algorithm
from runtime.kernels.fused_softmax_stats import softmax_stats_reference
from runtime.kernels.ops import TORCH
from runtime.layers.lm_head import SoftcapLMHead
from runtime.scheduling.step_plan import MASKED, AlgorithmBatch, DenoiseBlocks
from runtime.worker.candidates import SamplerConfig
from runtime.worker.sampler import Sampler
from tests.worker.sampling import alone, block_numbers, sample_plan

VOCAB, SIZE, BLOCKS, WIDTH = 30, 6, 4, 5


def plan(top_k: int) -> DenoiseBlocks:
    """Returns a plan with two sampled and two greedy canvases."""
    random = np.random.default_rng(3)
    rule = get_algorithm("noise")
    n = np.arange(BLOCKS)
    params = np.array([rule.param_row({f.name: f.default for f in rule.fields})] * BLOCKS)
    sampling = np.stack([n % 2 * 0.7, np.ones(BLOCKS), np.full(BLOCKS, top_k), 0.0 * n], 1)
    param_rows = np.concatenate([sampling, params], 1)
    history = np.zeros((BLOCKS, SIZE, 1, len(rule.history_fields)))
    return DenoiseBlocks(
        rows=n * SIZE, **alone(BLOCKS, SIZE), tokens=random.integers(0, VOCAB, (BLOCKS, SIZE)),
        state=np.full((BLOCKS, SIZE), MASKED, np.int8), sampled=random.random((BLOCKS, SIZE)) < 0.8,
        numbers=block_numbers(BLOCKS, must_advance=n > 0, num_steps=n),
        sampling_params=np.stack([np.sign(sampling[:, 0]), *sampling.T[1:]], 1),
        draws=random.integers(0, 99, (BLOCKS, 3)), uniform_noise=True,
        self_conditioned=True,
        groups=(AlgorithmBatch(rule, n, param_rows, int(rule.algorithm_stats({})), history),),
    )  # fmt: skip


@pytest.mark.parametrize(("top_k", "alone"), [(0, True), (4, False)])
def test_fused_statistics_equal_separate_operations(monkeypatch: pytest.MonkeyPatch, top_k: int, alone: bool) -> None:
    asked = plan(top_k)
    hidden = torch.randn(BLOCKS * SIZE, VOCAB, generator=torch.Generator().manual_seed(2)) * 5
    weight = SimpleNamespace(tensor=torch.eye(VOCAB), shape=(VOCAB, VOCAB))  # logits are the hidden states
    seen = []

    def softmax_stats(*arguments):
        seen.append(len(arguments[0]))
        found = softmax_stats_reference(*arguments)
        twice = torch.full_like(found.conf, 2)  # the kernel's probabilities are unnormalized too
        return found._replace(probs=found.probs * 2, divisor=twice)

    monkeypatch.setattr("runtime.worker.candidates.LOGITS_CHUNK_ROWS", 7)
    found = []
    for kernels in (replace(TORCH, softmax_stats=softmax_stats), TORCH):
        head = Sampler(
            SoftcapLMHead(weight, kernels, 4.0), SamplerConfig(SIZE, None, VOCAB - 3, (2,), vocab_size=VOCAB),
            self_conditioning_fn=lambda probs, by: (probs if by is None else probs / by[:, None])[:, :WIDTH],
        )  # fmt: skip
        signal = torch.zeros(BLOCKS, SIZE, WIDTH)
        ((_, _, blocks),) = sample_plan(head, asked, hidden, signal)
        found.append((blocks, signal))
    assert bool(seen) == alone
    assert all(rows <= 7 for rows in seen)
    for name in ("candidates", "argmax", "noise_tokens"):
        assert torch.equal(*(getattr(blocks, name) for blocks, _ in found)), name
    for name in ("confidence", "entropy"):
        torch.testing.assert_close(*(getattr(blocks, name) for blocks, _ in found), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1])
    assert int((found[0][0].candidates != found[0][0].argmax).sum()) > 0, "all candidates are the argmax"

"""Tests of logits processors and of min-p, in batches with other requests and on a sharded vocabulary."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.kernels.topk_topp_sampling import filtered_probs
from runtime.request.eager_reason import EagerReason
from runtime.worker.logits_processors import process_logits
from tests.algorithms.test_vocab_parallel import ROWS, VOCAB, same, some_logits
from tests.engine.harness import Ask, Run, Setup
from tests.oracle.block import Params
from tests.oracle.draws import filtered
from tests.worker.sampling import make_sampling_params

BASE = Ask((1, 2, 4, 5, 6), Params(max_tokens=9, ignore_eos=True))


def run(setup: Setup, *asks: Ask) -> Run:
    return Run(setup).finish(*asks)


def test_steps_without_any_are_replayed_and_those_with_one_are_counted() -> None:
    setup = Setup(replayed=True, max_len=40)
    shaped = replace(BASE, params=replace(BASE.params, presence_penalty=1.3))
    runner_stats = run(setup, BASE, BASE, BASE).engine.runner.stats
    assert runner_stats.replayed
    assert not runner_stats.eager[EagerReason.LOGITS_PROCESSORS]
    for asks in ((shaped,), (BASE, shaped)):
        engine = run(setup, *asks).engine
        assert engine.runner.stats.eager[EagerReason.LOGITS_PROCESSORS]
        assert engine.stats().steps_eager_logits_processors == engine.runner.stats.eager[EagerReason.LOGITS_PROCESSORS]


def test_steps_with_min_p_and_stop_tokens_are_replayed() -> None:
    """Neither of them needs a logits processor."""
    params = replace(BASE.params, temperature=1.0, min_p=0.2, stop_token_ids=(12,))
    asked = replace(BASE, params=params)
    runner_stats = run(Setup(replayed=True, max_len=40), asked, asked, asked).engine.runner.stats
    assert runner_stats.replayed
    assert not runner_stats.eager[EagerReason.LOGITS_PROCESSORS]


def some_shapes(random):
    """Returns inputs of the processors. Rows have common ids, and some ids twice with the same values."""
    ids = torch.randint(VOCAB, (ROWS, 5), generator=random)
    ids[:, 4] = ids[:, 0]
    numbers = {
        name: torch.randint(3, (ROWS, VOCAB), generator=random).gather(1, ids)
        for name in ("repetition_counts", "output_counts", "min_tokens")
    }
    bias = torch.randn(ROWS, VOCAB, generator=random, dtype=torch.float64).gather(1, ids)
    penalties = torch.tensor([1.3, 0.4, -0.2], dtype=torch.float64).expand(ROWS, 3)
    own = torch.where(torch.arange(ROWS) % 3 == 0, ids[:, 1], -1)
    position = torch.arange(ROWS) % 4
    return numbers | {"ids": ids, "bias": bias, "penalties": penalties, "position": position, "current_token": own}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_logits_processors_on_a_sharded_vocabulary(size, seed):
    logits, random = some_logits(seed, torch.float64)
    shapes = some_shapes(random)

    def ask(vocabulary, cut):
        mine = cut(logits)
        process_logits(mine, shapes, vocabulary)
        return (mine,)

    same(size, ask, columns=True)


@pytest.mark.parametrize("size", [2, 3])
def test_min_p_on_a_sharded_vocabulary(size):
    logits, random = some_logits(1, torch.float64)
    limits = {
        "temperature": torch.rand(ROWS, generator=random, dtype=torch.float64) + 0.3,
        "top_k": torch.randint(0, 9, (ROWS,), generator=random),
        "top_p": torch.rand(ROWS, generator=random, dtype=torch.float64).clamp(min=0.3),
        "min_p": torch.tensor([0.0, 0.04, 0.3, 1.0], dtype=torch.float64).repeat(ROWS // 4),
    }

    def spread(vocabulary, cut):
        probs = vocabulary.filtered_probs(cut(logits), make_sampling_params(**limits))
        return probs > 0, probs

    same(size, spread, columns=True)


def test_min_p_keeps_what_the_oracle_keeps():
    random = np.random.default_rng(4)
    logits = random.normal(size=(60, 40)) * 3
    limits = np.stack([random.choice(values, 60) for values in ([0.5, 1, 2], [0, 3], [1, 0.8], [0, 0.02, 0.4, 1])], 1)
    found = filtered_probs(torch.from_numpy(logits), torch.from_numpy(limits[:, [0, 2, 1, 3]]))
    for row, mine, (t, k, p, m) in zip(logits, found.numpy(), limits, strict=True):
        np.testing.assert_allclose(mine, filtered(row / t, int(k), p, m), atol=1e-12)

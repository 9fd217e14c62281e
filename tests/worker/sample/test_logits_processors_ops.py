"""What is done to logits, where processes share a vocabulary too, and min-p."""

import numpy as np
import pytest
import torch

from runtime.algorithms import sampling
from runtime.engine.logits_processors_state import LogitsProcessorState
from runtime.worker.sample.logits_processors_ops import LogitsProcessorInputs, process_logits
from tests.algorithms.test_vocab_parallel import ROWS, VOCAB, same, some_logits
from tests.oracle.draws import filtered


def some_shapes(random):
    """Ids that several rows share, some of them twice in a row with the same numbers."""
    ids = torch.randint(VOCAB, (ROWS, 5), generator=random)
    ids[:, 4] = ids[:, 0]
    numbers = {
        name: torch.randint(3, (ROWS, VOCAB), generator=random).gather(1, ids)
        for name in ("repetition_counts", "output_counts", "min_tokens")
    }
    bias = torch.randn(ROWS, VOCAB, generator=random, dtype=torch.float64).gather(1, ids)
    penalties = torch.tensor([1.3, 0.4, -0.2], dtype=torch.float64).expand(ROWS, 3)
    own = torch.where(torch.arange(ROWS) % 3 == 0, ids[:, 1], -1)
    return LogitsProcessorInputs(
        ids=ids, **numbers, bias=bias, penalties=penalties, position=torch.arange(ROWS) % 4, current_token=own
    )


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_where_processes_share_a_vocabulary(size, seed):
    logits, random = some_logits(seed, torch.float64)
    shapes = some_shapes(random)

    def ask(vocabulary, cut):
        mine = cut(logits)
        process_logits(mine, shapes, vocabulary)
        return (mine,)

    same(size, ask, columns=True)


@pytest.mark.parametrize("size", [2, 3])
def test_min_p_where_processes_share_a_vocabulary(size):
    logits, random = some_logits(1, torch.float64)
    limits = {
        "temperature": torch.rand(ROWS, generator=random, dtype=torch.float64) + 0.3,
        "top_k": torch.randint(0, 9, (ROWS,), generator=random),
        "top_p": torch.rand(ROWS, generator=random, dtype=torch.float64).clamp(min=0.3),
        "min_p": torch.tensor([0.0, 0.04, 0.3, 1.0], dtype=torch.float64).repeat(ROWS // 4),
    }

    def spread(vocabulary, cut):
        probs = vocabulary.distribution(cut(logits), **limits)
        return probs > 0, probs

    same(size, spread, columns=True)


def test_min_p_keeps_what_the_oracle_keeps():
    random = np.random.default_rng(4)
    logits = random.normal(size=(60, 40)) * 3
    limits = np.stack([random.choice(values, 60) for values in ([0.5, 1, 2], [0, 3], [1, 0.8], [0, 0.02, 0.4, 1])], 1)
    temperature, top_k, top_p, min_p = (torch.from_numpy(column.astype(np.float64)) for column in limits.T)
    found = sampling.distribution(
        torch.from_numpy(logits), temperature=temperature, top_k=top_k.long(), top_p=top_p, min_p=min_p
    )
    for row, mine, (t, k, p, m) in zip(logits, found.numpy(), limits, strict=True):
        np.testing.assert_allclose(mine, filtered(row / t, int(k), p, m), atol=1e-12)


def test_ends_are_never_counted():
    from runtime.request.engine_messages import RequestSpec, Shaping

    asked = Shaping(repetition=2.0, presence=1.0, bias={9: 1.5}, min_tokens=4)
    spec = RequestSpec(id="r", prompt=[3, 3, 5, 1], max_tokens=8, stop_ids=[7], shaping=asked)
    found = LogitsProcessorState(spec, asked, eos_ids=[1]).adjustments(np.array([5, 6, 6, 1, 7]))
    assert found.ids.tolist() == [1, 3, 5, 6, 7, 9]
    assert found.repetition_counts.tolist() == [0, 2, 2, 2, 0, 0]
    assert found.output_counts.tolist() == [0, 0, 1, 2, 0, 0]
    assert found.bias.tolist() == [0, 0, 0, 0, 0, 1.5]
    assert found.min_tokens.tolist() == [4, 0, 0, 0, 4, 0]

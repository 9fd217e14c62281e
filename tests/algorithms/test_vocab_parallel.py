"""Tests that operations on a sharded vocabulary return the results of an unsharded one, also for equal logits."""

import pytest
import torch

from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS
from runtime.algorithms.vocab_parallel import VocabParallelLogitsOps
from runtime.parameters.sharding import VocabShard
from tests.distributed.threads import together
from tests.worker.sampling import make_sampling_params

VOCAB, ROWS = 37, 24


def some_logits(seed, dtype):
    """Returns logits with ties, with ids at -inf and with one dominant id, and the random generator."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, VOCAB, generator=random, dtype=dtype) * 2
    logits[::3] = logits[::3].round()
    logits[1::4, torch.randperm(VOCAB, generator=random)[:20]] = float("-inf")
    logits[2::5, int(torch.randint(VOCAB, (1,), generator=random))] += 9
    logits[0], logits[5, :-1], logits[5, -1] = 0.0, float("-inf"), 1.0
    return logits, random


def parted(size, ask):
    """Returns the results of `ask(vocabulary, cut)` on each of `size` ranks. `cut` returns a rank's columns."""

    def one(group):
        rank = group.rank
        ids = VocabShard(range(VOCAB * rank // size, VOCAB * (rank + 1) // size), VOCAB, group)
        return ask(VocabParallelLogitsOps(ids), lambda full: full[:, ids.local.start : ids.local.stop].clone())

    return together(size, one)


def same(size, ask, *, columns=False):
    full = ask(DEFAULT_LOGITS_OPS, lambda tensor: tensor.clone())
    answers = parted(size, ask)
    if columns:
        answers = [tuple(torch.cat(parts, 1) for parts in zip(*answers, strict=True))]
    for answer in answers:
        for ours, expected in zip(answer, full, strict=True):
            if not ours.is_floating_point():
                assert torch.equal(ours, expected)
            else:
                torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_argmax_top_tokens_and_probabilities(dtype, size, seed):
    logits, random = some_logits(seed, dtype)
    tokens = torch.randint(VOCAB, (ROWS,), generator=random)
    several = torch.randint(VOCAB, (ROWS, 4), generator=random)
    counts = torch.rand(ROWS, 4, generator=random) < 0.6

    def ask(vocabulary, cut):
        best, three = vocabulary.greedy(cut(logits)), vocabulary.top_tokens(cut(logits), 3)
        but = vocabulary.argmax_excluding(cut(logits), (3, 30))
        unlike, there = vocabulary.argmax_excluding_rows(cut(logits), several, counts)
        return (
            best.token, best.confidence, three.probs, vocabulary.probability(cut(logits), tokens),
            torch.where(three.probs > 0, three.ids, 0), but[6:], torch.where(there, unlike, 0), there,
        )  # fmt: skip

    same(size, ask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_distributions_and_draws(dtype, size, seed):
    logits, random = some_logits(seed, dtype)
    sampling_params = {
        "temperature": torch.rand(ROWS, generator=random, dtype=torch.float64) + 0.3,
        "top_k": torch.randint(-1, VOCAB + 4, (ROWS,), generator=random).clamp(min=0),
        "top_p": (torch.rand(ROWS, generator=random, dtype=torch.float64) * 1.3).clamp(min=0.01),
    }

    def spread(vocabulary, cut):
        probs = vocabulary.filtered_probs(cut(logits), make_sampling_params(**sampling_params), num_unfiltered=4)
        return probs > 0, probs, vocabulary.softmax(cut(logits))

    same(size, spread, columns=True)
    uniform = torch.rand(ROWS, generator=random, dtype=torch.float64)
    uniform[:2] = torch.tensor([0.0, 1 - 1e-12], dtype=torch.float64)

    def shape(vocabulary, cut):
        probs = vocabulary.filtered_probs(cut(logits), make_sampling_params(**sampling_params))
        drawn = vocabulary.multinomial(probs, uniform)
        return drawn.token, drawn.confidence, vocabulary.margin(probs), vocabulary.entropy(probs)

    same(size, shape)


@pytest.mark.parametrize("size", [2, 3])
def test_forbidden_ids_added_values_and_gathered_logits(size):
    logits, random = some_logits(4, torch.float64)
    ids = torch.randint(VOCAB, (ROWS, 3), generator=random)
    values = torch.randn(ROWS, 3, generator=random, dtype=torch.float64)

    def ask(vocabulary, cut):
        banned, added = cut(logits), cut(logits)
        vocabulary.mask_forbidden(banned, mask_id=20, max_token_id=30, allowed_special_ids=[33, 20])
        vocabulary.scatter_add(added, ids, values)
        return banned, added

    same(size, ask, columns=True)
    every = parted(size, lambda vocabulary, cut: vocabulary.all_gather(cut(logits)))
    assert all(torch.equal(each, logits) for each in every)
    eos = torch.tensor([1, 19, 36])
    found = parted(size, lambda vocabulary, cut: cut(logits)[:, vocabulary.local_columns(eos)])
    assert torch.equal(torch.cat(found, 1), logits[:, eos])

"""Two ranks answer as one process does: token for token in float64, whatever the family and the request."""

import pytest
import torch

from runtime import LLM
from tests.ranks.cases import EXPERTS, FAMILIES, answers, logits, served


@pytest.mark.parametrize("key", FAMILIES)
def test_every_family(pair, tmp_path, key):
    flags = served(key, tmp_path)
    assert answers(flags, tensor_parallel_size=2) == answers(flags)


@pytest.mark.parametrize("key", EXPERTS)
def test_experts_that_are_dealt_out(pair, tmp_path, key):
    flags = served(key, tmp_path)
    dealt = logits(flags, tensor_parallel_size=2, expert_parallel_size=2)
    torch.testing.assert_close(dealt, logits(flags), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("key", ["dream"])  # of an odd vocabulary
def test_logits_are_whole(pair, tmp_path, key):
    flags = served(key, tmp_path)
    torch.testing.assert_close(logits(flags, tensor_parallel_size=2), logits(flags), rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["unified", "distinct"])
@pytest.mark.parametrize("experts", [1, 2])
@pytest.mark.parametrize("key", FAMILIES)
def test_every_family_layout_and_share(pair, tmp_path, key, layout, experts):
    if experts > 1 and key not in EXPERTS:
        pytest.skip("it has no experts")
    flags = served(key, tmp_path) | {"kv_cache_layout": layout}
    assert answers(flags, tensor_parallel_size=2, expert_parallel_size=experts) == answers(flags)


@pytest.mark.parametrize("quantization", ["fp8"])
def test_eight_bits(pair, tmp_path, quantization):
    """Each rank rounds its own inputs' share, so that it is near and not the same."""
    flags = served("llada2_tiny", tmp_path) | {"dtype": "float32", "quantization": quantization}
    ours, expected = logits(flags, tensor_parallel_size=2), logits(flags)
    assert float((ours - expected).norm() / expected.norm()) < 0.2


def test_an_engine_says_what_it_is(pair, tmp_path):
    with LLM(**served("llada2_tiny", tmp_path), tensor_parallel_size=2) as llm:
        assert (llm.info.tensor_parallel_size, llm.info.expert_parallel_size) == (2, 1)

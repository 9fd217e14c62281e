"""Tests that two ranks give the same tokens as one process in float64, for every family and kind of request."""

from typing import Any

import pytest
import torch

from runtime import LLM, SamplingParams
from tests.executor.cases import EXPERTS, FAMILIES, answers, logits, served
from tests.matrix import marked


@pytest.mark.parametrize("key", marked(FAMILIES, quick=("llada2_tiny", "dream", "sdar_moe")))
def test_every_family(pair, tmp_path, key):
    flags = served(key, tmp_path)
    assert answers(flags, tensor_parallel_size=2) == answers(flags)


@pytest.mark.parametrize("key", marked(EXPERTS, quick=("llada2_tiny", "sdar_moe")))
def test_expert_parallelism(pair, tmp_path, key):
    flags = served(key, tmp_path)
    dealt = logits(flags, tensor_parallel_size=2, expert_parallel_size=2)
    torch.testing.assert_close(dealt, logits(flags), rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["unified", "distinct"])
@pytest.mark.parametrize("experts", [1, 2])
@pytest.mark.parametrize("key", FAMILIES)
def test_every_family_layout_and_shard(pair, tmp_path, key, layout, experts):
    if experts > 1 and key not in EXPERTS:
        pytest.skip("it has no experts")
    flags = served(key, tmp_path) | {"kv_cache_layout": layout}
    assert answers(flags, tensor_parallel_size=2, expert_parallel_size=experts) == answers(flags)


def test_fp8(pair, tmp_path):
    """Each rank quantizes its own shard of the activations, so the logits are near but not equal."""
    flags = served("llada2_tiny", tmp_path) | {"dtype": "float32", "quantization": "fp8"}
    ours, expected = logits(flags, tensor_parallel_size=2), logits(flags)
    assert float((ours - expected).norm() / expected.norm()) < 0.2


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n", "s"]}
HELD = [{"json": SCHEMA}, {"regex": "[a-f]{3,9}-(x|yz)+"}, {"choice": ["a fox", "a river"]}]


def held(**more: Any) -> list[Any]:
    """Returns answers, and log-probabilities of these and of a scored text."""
    few = {"max_tokens": 16, "seed": 5, "logprobs": 3}
    asked = [SamplingParams(**few, structured_outputs=form, temperature=t) for form in HELD for t in (0.0, 0.8)]
    asked += [SamplingParams(**few), SamplingParams(**few, structured_outputs=HELD[1], logit_bias={70: -3.0})]
    with LLM(device="cpu", dtype="float64", max_num_reqs=len(asked), **more) as llm:
        assert llm.info.tensor_parallel_size == more.get("tensor_parallel_size", 1)
        outs = llm.generate(["Write this as JSON: "] * len(asked), asked)
        outputs = [(out.token_ids, out.nfe, out.finish_reason) for out in outs]
        logprobs = [one for out in outs for one in out.logprobs] + llm.score([("Anna lives in", " Rome.")], top=2)[0]
        return outputs, logprobs


@pytest.mark.matrix
def test_rank_0_samples_from_full_logits(pair, monkeypatch):
    """Also covers more rows than are gathered at a time."""
    expected, others = held()
    monkeypatch.setattr("runtime.worker.candidates.GATHERED_ROWS", 40)
    outputs, logprobs = held(tensor_parallel_size=2)
    assert outputs == expected
    assert [(one.id, [id for id, _ in one.top]) for one in logprobs] == [
        (one.id, [id for id, _ in one.top]) for one in others
    ]
    values = [[one.logprob or 0.0 for one in each] for each in (logprobs, others)]
    assert values[0] == pytest.approx(values[1], abs=1e-9)

"""Tests of `--torch-compile-mode`: results are the same except for rounding, and a failed compilation is an error."""

import shutil

import pytest
import torch

from runtime import LLM, SamplingParams
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, CompiledLogitsOps
from runtime.errors import ConfigError
from tests.golden import GOLDEN

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")


@pytest.fixture(scope="module")
def compiled():
    return CompiledLogitsOps("default", torch.device("cpu"), torch.float32, 300)


@pytest.mark.slow  # a compilation takes as long as a thousand other tests
@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 37])
def test_compiled_ops_return_the_same_results(compiled, rows):
    random = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, 300, generator=random) * 5
    logits[:, 280:] = float("-inf")  # forbidden ids
    logits[0, 7] = logits[0, 3] = 99.0  # of equal logits, the lowest id is the argmax
    before = logits.clone()
    with torch.inference_mode():
        found, expected = compiled.greedy(logits), DEFAULT_LOGITS_OPS.greedy(logits)
        assert torch.equal(found.token, expected.token)
        torch.testing.assert_close(found.confidence, expected.confidence)
        torch.testing.assert_close(compiled.entropy_from_logits(logits), DEFAULT_LOGITS_OPS.entropy_from_logits(logits))
        assert torch.equal(compiled.margin_from_logits(logits), DEFAULT_LOGITS_OPS.margin_from_logits(logits))
    assert torch.equal(logits, before)


@pytest.mark.matrix
@needs_compiler
def test_answers_equal_those_without_compilation(monkeypatch):
    asked = []
    entropy_from_logits = CompiledLogitsOps.entropy_from_logits
    monkeypatch.setattr(
        CompiledLogitsOps, "entropy_from_logits", lambda self, x: asked.append(len(x)) or entropy_from_logits(self, x)
    )

    def answers(**flags):
        params = [
            SamplingParams(max_tokens=20, ignore_eos=True, temperature=0, decoding={"algorithm": "entropy_bound"}),
            SamplingParams(
                max_tokens=20, ignore_eos=True, temperature=0, decoding={"confidence_metric": "neg_entropy"}
            ),
            SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.9, seed=3),
        ]
        model = str(GOLDEN / "llada2_tiny")
        with LLM(model, device="cpu", skip_tokenizer=True, **flags) as llm:
            return [out.token_ids for out in llm.generate([[5, 6, 7], [9, 8], [3]], params)]

    expected = answers()
    assert answers(torch_compile_mode="default", disable_torch_compile=True) == expected
    assert not asked
    assert answers(torch_compile_mode="default") == expected
    assert asked


def test_failed_compilation_is_a_config_error(monkeypatch):
    def broken(*_, **__):
        return lambda *_: (_ for _ in ()).throw(RuntimeError("no compiler\nwas found\n\nSet A=1 for more"))

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(ConfigError, match=r"--torch-compile-mode default: .* \(no compiler was found\); leave it out"):
        CompiledLogitsOps("default", torch.device("cpu"), torch.float32, 8)

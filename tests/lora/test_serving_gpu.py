"""Tests of adapters on the GPU: captured and eager steps give the answers of the CPU."""

import pytest
import torch

from runtime import LLM, SamplingParams
from runtime.kernels.fused_moe.fused_moe import grouped_gemm
from tests.golden import GOLDEN
from tests.lora.samples import random_adapter

pytestmark = pytest.mark.gpu
BASE = GOLDEN / "llada2_tiny"
ATTENTION, EXPERTS = r".*(query_key_value|dense)", r".*experts.*"
IDS = list(range(3, 43))
PARAMS = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def llm(directory, kinds, device="cuda", **flags):
    lora = {f"a{n}": str(random_adapter(directory / f"a{n}", BASE, kinds[n % len(kinds)], n)) for n in range(4)}
    flags = {"dtype": "float32", "block_size": 8, "skip_tokenizer": True, "max_num_reqs": 8, "num_pages": 64, **flags}
    return LLM(str(BASE), device=device, lora=lora, **flags)


@pytest.mark.parametrize("kinds", [[ATTENTION], [ATTENTION, EXPERTS]], ids=["attention", "experts"])
def test_logits_and_answers(kinds, tmp_path):
    names = ["a0", None, "a1", "a2", "a3", None, "a1"]
    prompts = [IDS[i : 2 * i + 9] for i in range(len(names))]
    with llm(tmp_path, kinds, device="cpu") as engine:
        logits = {name: engine.logits(IDS, adapter=name) for name in ("a0", "a1", None)}
        expected = [out.token_ids for out in engine.generate(prompts, PARAMS, adapter=names)]
    for flags in ({}, {"max_loras": 2}, {"enforce_eager": True}):
        with llm(tmp_path, kinds, **flags) as engine:
            for name, reference in logits.items():
                torch.testing.assert_close(engine.logits(IDS, adapter=name), reference, rtol=1e-3, atol=1e-3)
            outs = engine.generate(prompts, PARAMS, adapter=names)
            runner_stats = engine.engine.runner.stats
            assert [out.token_ids for out in outs] == expected
            if not flags:
                assert (runner_stats.replayed > 0) == (kinds == [ATTENTION])


def test_an_adapter_that_is_loaded_later_is_captured(tmp_path):
    """The adapter changes weights that no adapter changed when graphs were captured."""
    other = random_adapter(tmp_path / "b", BASE, r".*layers\.0\.mlp\.(gate_proj|up_proj|down_proj)", 9)
    with llm(tmp_path, [ATTENTION]) as engine:
        engine.load_adapter("b", str(other))
        before = engine.engine.runner.num_graphs
        params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        (out,) = engine.generate([IDS], params, adapter="b")
        assert engine.engine.runner.num_graphs > before
    with llm(tmp_path, [ATTENTION], device="cpu") as engine:
        engine.load_adapter("b", str(other))
        assert engine.generate([IDS], params, adapter="b")[0].token_ids == out.token_ids


@pytest.mark.parametrize(("inputs", "outputs"), [(2048, 1024), (512, 16), (16, 2048)])
def test_gemms_of_experts_with_adapters(inputs, outputs):
    """Compares the grouped GEMM in bfloat16; some experts have no rows."""
    random = torch.Generator().manual_seed(inputs)
    expert = torch.randint(0, 12, (300,), generator=random).sort().values + 2
    x, stack = (torch.randn(*shape, generator=random) for shape in ((300, inputs), (16, outputs, inputs)))
    counts = torch.bincount(expert, minlength=len(stack))
    made = grouped_gemm(x.cuda().bfloat16(), counts.cuda(), stack.cuda().bfloat16())
    expected = grouped_gemm(x.bfloat16().double(), counts, stack.bfloat16().double())
    assert (made.cpu().double() - expected).norm() / expected.norm() < 1e-2

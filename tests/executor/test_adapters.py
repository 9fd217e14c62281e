"""Tests that two ranks give the same tokens with LoRA adapters as one process, in float64."""

from pathlib import Path

import pytest
import torch

from runtime import LLM, SamplingParams
from tests.executor.cases import EXPERTS, served
from tests.lora.samples import random_adapter
from tests.matrix import marked

LAYER = r".*(layers|blocks)\.\d+\."
KINDS = (
    rf"{LAYER}(?!router).*(proj|query_key_value|dense|attn_out|ff_out)",  # no adapter may change a router
    rf"{LAYER}.*(q_proj|query_key_value|o_proj|dense|attn_out)",
    rf"{LAYER}.*(experts.*|up_proj)",
)
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 9, 8, 1, 2], [3], [4, 4, 9], [7, 7]]
NAMES = ["a0", None, "a1", "a2", "a0"]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.0, decoding={"accept_threshold": 0.1})
# DiffusionGemma samples in any case
NOISE = SamplingParams(max_tokens=12, ignore_eos=True, seed=3, decoding={"max_denoising_steps": 6})
# Fused or separate QKV weights, few KV heads, an odd head width, experts.
KEYS = ("llada2_tiny", "dream", "llada", "sdar_moe", "dmax")


@pytest.fixture
def flags(request, tmp_path):
    return served(request.param, tmp_path / "model") | {"max_num_reqs": 8}


@pytest.fixture
def adapters(flags, tmp_path):
    base = Path(flags["model"])
    return {
        f"a{n}": str(random_adapter(tmp_path / f"a{n}", base, kind, n, rank=2 + n, size=0.4))
        for n, kind in enumerate(KINDS)
    }


def answers(flags, adapters, **more):
    with LLM(**flags, lora=adapters, max_loras=2, **more) as llm:
        noisy = llm.info.family == "diffusion_gemma"
        outs = llm.generate(PROMPTS, NOISE if noisy else PARAMS, adapter=NAMES)
        every = [llm.logits(list(range(3, 17)), adapter=name) for name in (*adapters, None)]
        return [out.token_ids for out in outs], torch.stack(every)


CASES = marked(
    [*((key, 1) for key in (*KEYS, "diffusion_gemma")), ("sdar_moe", 2)], quick=[("dream", 1), ("sdar_moe", 2)]
)
OTHERS = [key for key in EXPERTS if key not in (*KEYS, "diffusion_gemma")]
SLOW = [pytest.param(key, 1, marks=pytest.mark.slow) for key in OTHERS]


@pytest.mark.parametrize(("flags", "experts"), [*CASES, *SLOW], indirect=["flags"])
def test_a_mixed_batch_over_two_slots(pair, flags, adapters, experts):
    tokens, logits = answers(flags, adapters, tensor_parallel_size=2, expert_parallel_size=experts)
    expected, others = answers(flags, adapters)
    assert tokens == expected
    torch.testing.assert_close(logits, others, rtol=1e-10, atol=1e-10)
    assert len({one.sum().item() for one in logits}) == 4, "two adapters give the same logits"


@pytest.mark.parametrize("flags", ["llada2_tiny"], indirect=True)
def test_adapters_are_loaded_and_unloaded_while_serving(pair, flags, adapters):
    """Only rank 0 reads adapters that are loaded later."""
    expected, _ = answers(flags, adapters)
    with LLM(**flags, max_loras=2, tensor_parallel_size=2) as llm:
        for _ in range(2):
            for name, path in adapters.items():
                llm.load_adapter(name, path)
            assert [out.token_ids for out in llm.generate(PROMPTS, PARAMS, adapter=NAMES)] == expected
            for name in adapters:
                llm.unload_adapter(name)


@pytest.mark.parametrize("flags", ["llada2_tiny"], indirect=True)
def test_an_adapter_merged_at_start(pair, flags, adapters):
    merged = {"use_lora": True, "lora_path": adapters["a0"], "pre_merge_lora": True}
    found = []
    for more in ({"tensor_parallel_size": 2}, {}):
        with LLM(**flags, **merged, **more) as llm:
            found.append(llm.logits(list(range(3, 17))))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)

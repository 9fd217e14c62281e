"""Tests of adapters merged at start, against logits of PEFT and against checkpoints with summed weights."""

import json

import pytest
import torch
from safetensors.torch import load_file

from runtime import LLM, SamplingParams
from tests.golden import GOLDEN
from tests.lora.samples import merged_checkpoint, random_adapter

LORA = GOLDEN / "lora"
CASES = json.loads((LORA / "cases.json").read_text())


def merged(base, path, **flags):
    flags = {"device": "cpu", "skip_tokenizer": True, **flags}
    return LLM(str(base), use_lora=True, lora_path=str(path), pre_merge_lora=True, **flags)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_logits_of_peft(case):
    expected = load_file(LORA / "expected.safetensors")
    ids = expected[case["ids"]].flatten().tolist()
    with merged(GOLDEN / case["base"], LORA / case["adapter"], block_size=case["block_size"]) as llm:
        out = llm.logits(ids)
    torch.testing.assert_close(out, expected[case["logits"]].reshape(out.shape), rtol=1e-4, atol=5e-4)
    assert (out - expected[case["base_logits"]].reshape(out.shape)).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["dream", "llada"])
def test_d2f_decodes_with_an_adapter_in_its_weights(family, tmp_path):
    base = GOLDEN / f"d2f_{family}"
    adapter = random_adapter(tmp_path / "a", base, r".*(q_proj|v_proj|up_proj)", 1)
    merged_path = merged_checkpoint(tmp_path / "merged", base, adapter)
    case = next(c for c in json.loads((base / "cases.json").read_text()) if c["kind"] == "decode")
    flags = {"decoding_strategy": "d2f", "mask_token_id": case["mask_token_id"], "dtype": "float32"}
    params = SamplingParams(max_tokens=16, temperature=0.0)
    with merged(base, adapter, **flags) as llm:
        (own,) = llm.generate([case["prompt_ids"]], params)
    with LLM(str(merged_path), device="cpu", skip_tokenizer=True, **flags) as llm:
        (expected,) = llm.generate([case["prompt_ids"]], params)
    assert own.token_ids == expected.token_ids
    assert own.nfe == expected.nfe

"""Tests of adapters on a quantized checkpoint: added to its unchanged weights, or merged and quantized again."""

import pytest
import torch

from tests.lora.samples import random_adapter
from tests.lora.test_serving import BASE, EVERY, llm
from tests.quantization.quantized_files import write_both

IDS = list(range(40, 64))


@pytest.mark.parametrize("layout", ["int4, groups of 32", "int8, outputs", "fp8, blocks"])
def test_adapters_on_a_quantized_checkpoint(tmp_path, layout):
    """The shared experts are unquantized."""
    paths = {"one": str(random_adapter(tmp_path / "one", BASE, EVERY, 3))}
    quantized, unquantized = write_both(layout, BASE, tmp_path, lambda name: "shared_experts" in name)
    out = []
    for path in (quantized, unquantized):
        with llm(path, dtype="float64", lora=paths) as engine:
            out.append([engine.logits(IDS, adapter=name) for name in ("one", None)])
    for ours, expected in zip(*out, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(out[0][0], out[0][1], atol=0.1)


@pytest.mark.parametrize("layout", ["int8, outputs", "fp8, blocks"])
def test_an_adapter_merged_into_quantized_weights(tmp_path, layout):
    adapter = str(random_adapter(tmp_path / "one", BASE, EVERY, 3))
    quantized, unquantized = write_both(layout, BASE, tmp_path)
    merged = {"use_lora": True, "lora_path": adapter, "pre_merge_lora": True}
    with llm(quantized, dtype="float64", **merged) as engine, llm(unquantized, dtype="float64", **merged) as reference:
        ours, expected = engine.logits(IDS), reference.logits(IDS)
    assert 1e-4 < float((ours - expected).norm(dim=-1).median() / expected.norm(dim=-1).median()) < 0.2

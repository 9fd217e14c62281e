"""Tests on a GPU that prefetched weights equal those that are loaded one tensor at a time."""

import json

import pytest
import torch
from safetensors.torch import save_file

from runtime.errors import ConfigError
from runtime.parameters.weight import named_weights
from runtime.weights import loader
from tests.models.paged import load, logits_in_chunks
from tests.oracle.tiny import tiny_config, tiny_tensors, write_tiny
from tests.quantization.quantized_files import LAYOUTS, write_both
from tests.weights.test_checkpoint import shard

pytestmark = pytest.mark.gpu


def write(path, change=lambda tensors: None):
    settings = tiny_config()
    tensors = tiny_tensors(settings, seed=1)
    change(tensors)
    (path / "config.json").write_text(json.dumps(settings))
    save_file(tensors, path / "model.safetensors")
    shard(path)
    return path


def stored(weight):
    held = weight.kernel_arg
    return [held] if isinstance(held, torch.Tensor) else [held.values, held.scales]


@pytest.mark.parametrize("quantization", [None, "fp8", "int8", "int4", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prefetched_weights_equal_those_that_are_loaded_one_by_one(tmp_path, monkeypatch, dtype, quantization):
    path = write(tmp_path)
    prefetched = named_weights(load(path, dtype, "cuda", "torch", quantization=quantization))
    monkeypatch.setattr(loader, "_prefetch", lambda checkpoint, sources, names, streamed: (
        (name, sources[name]) for name in names
    ))  # fmt: skip
    expected = named_weights(load(path, dtype, "cuda", "torch", quantization=quantization))
    for name, weight in expected.items():
        for mine, other in zip(stored(prefetched[name]), stored(weight), strict=True):
            assert torch.equal(mine.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)), name


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if "128" not in layout])
@pytest.mark.parametrize("part", ["all", "experts"])
def test_quantized_files_give_the_same_model_as_on_the_cpu(tmp_path, layout, part):
    """Codes are prefetched, scales are not. If only experts are quantized, other weights have unquantized kernels."""
    sizes = {"hidden_size": 64, "head_dim": 16, "moe_intermediate_size": 64, "intermediate_size": 128}
    write_tiny(tmp_path / "plain", seed=3, vocab=64, **sizes)
    quantized, _ = write_both(
        layout, tmp_path / "plain", tmp_path, lambda name: part == "experts" and ".experts." not in name
    )
    models = [load(quantized, torch.float32, device) for device in ("cuda", "cpu")]
    ours, expected = (named_weights(model) for model in models)
    for name, weight in expected.items():
        assert torch.equal(ours[name].tensor.cpu(), weight.tensor), name
    if layout.startswith("fp8") and "blocks" not in layout:
        return  # a GPU quantizes rows, too
    found = [
        logits_in_chunks(
            model, [[5, 6, 7, 8, 31, 31, 31, 31, 9]], block_size=4, page_size=4, chunk_blocks=[2], device=at
        )
        for model, at in zip(models, ("cuda", "cpu"), strict=True)
    ]
    torch.testing.assert_close(found[0][0].cpu(), found[1][0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [(float("nan"), "holds NaN or infinite values"), (1e38, "holds values too large for torch.float16")],
)
def test_values_that_are_not_finite_are_named_with_their_tensor(tmp_path, value, sentence):
    name = "model.layers.1.mlp.experts.2.gate_proj.weight"
    path = write(tmp_path, lambda tensors: tensors[name].view(-1)[:1].fill_(value))
    with pytest.raises(ConfigError, match=f"{name}.*{sentence}"):
        load(path, torch.float16, "cuda", "torch")

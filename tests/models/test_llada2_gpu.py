"""Tests of LLaDA2 on the GPU against the oracle and torch kernels. test_every_family_gpu.py has golden inputs."""

from dataclasses import replace

import pytest
import torch

from runtime.bench.model_shapes import architecture, fill_random, random_model
from runtime.kernels.ops import TORCH, TRITON
from runtime.layers.layer_factory import LayerFactory
from runtime.models.decoder import Decoder
from runtime.models.llada2 import parse
from runtime.parameters.weight import named_weights
from tests.models.paged import load, logits_in_chunks
from tests.oracle.model import OracleModel
from tests.oracle.tiny import ARCHITECTURES, write_tiny

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
# Relative error of the logits that a dtype's rounding can explain in models with a few layers.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 0.12}
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float32", "float16", "bfloat16"])
implementations = pytest.mark.parametrize("attn_impl", ["triton_grouped", "triton", "torch"])


def copy_weights(source: Decoder, target: Decoder) -> None:
    theirs = named_weights(source)
    for name, weight in named_weights(target).items():
        weight.load((), theirs[name].tensor)


def distance(out: torch.Tensor, expected: torch.Tensor) -> float:
    assert torch.isfinite(out).all()
    return float((out.double().cpu() - expected.double().cpu()).norm() / expected.double().norm().cpu())


@implementations
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_random_architectures_equal_the_oracle(tmp_path, name, attn_impl):
    write_tiny(tmp_path, seed=len(name), **ARCHITECTURES[name])
    model, oracle = load(tmp_path, torch.float32, "cuda", attn_impl), OracleModel.load(tmp_path, block=4)
    random = torch.Generator().manual_seed(3)
    sequences = [torch.randint(0, 32, (n,), generator=random).tolist() for n in (1, 7, 12, 31, 50)]
    results = logits_in_chunks(model, sequences, block_size=4, page_size=8, chunk_blocks=[1, 1, 2, 3, 5], device="cuda")
    for ids, logits in zip(sequences, results, strict=True):
        assert distance(logits, oracle.logits(ids)) < 1e-4


@pytest.mark.parametrize("kernels", [TORCH, TRITON], ids=["torch", "triton"])
def test_float64_and_torch_kernels_run_on_the_device_too(kernels):
    arch = parse(architecture("llada2-tiny"))
    models = []
    for dtype, chosen, attn_impl in ((torch.float64, None, "torch"), (torch.float32, kernels, "triton_grouped")):
        build = LayerFactory.create("cuda", dtype, attn_impl)
        model = Decoder(arch, build if chosen is None else replace(build, kernels=chosen))
        fill_random(model, torch.Generator("cuda").manual_seed(1))
        models.append(model)
    copy_weights(models[0], models[1])
    ids = torch.randint(0, 1000, (200,), generator=torch.Generator().manual_seed(2)).tolist()
    plan = {"block_size": 32, "page_size": 32, "chunk_blocks": [3], "device": "cuda"}
    (expected,) = logits_in_chunks(models[0], [ids], dtype=torch.float64, **plan)
    (logits,) = logits_in_chunks(models[1], [ids], dtype=torch.float32, **plan)
    assert distance(logits, expected) < 1e-4


def test_the_head_keeps_the_accumulators_precision():
    model = random_model(architecture("llada2-tiny"), LayerFactory.create("cuda", torch.bfloat16, "triton"))
    hidden = torch.randn(7, 128, device="cuda", dtype=torch.bfloat16)
    logits = model.lm_head(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(
        logits.double(), hidden.double() @ model.lm_head_weight.tensor.double().T, rtol=1e-5, atol=1e-4
    )


def test_four_layers_of_minis_width_prefill_and_decode():
    """Compares Triton kernels in bfloat16 with torch kernels in float32, at realistic widths and with 256 experts."""
    arch = parse({**architecture("llada2-mini"), "num_hidden_layers": 4, "vocab_size": 4096, "mask_token_id": 4095})
    model = Decoder(arch, LayerFactory.create("cuda", torch.bfloat16))
    fill_random(model, torch.Generator("cuda").manual_seed(5))
    reference = Decoder(arch, replace(LayerFactory.create("cuda", torch.float32, "torch"), kernels=TORCH))
    copy_weights(model, reference)
    random = torch.Generator().manual_seed(6)
    sequences = [torch.randint(0, 4000, (n,), generator=random).tolist() for n in (512, 64, 300)]
    plan = {"block_size": 32, "page_size": 32, "chunk_blocks": [12, 1, 5], "device": "cuda"}
    expected = logits_in_chunks(reference, sequences, dtype=torch.float32, **plan)
    results = logits_in_chunks(model, sequences, dtype=torch.bfloat16, **plan)
    for logits, expected_logits in zip(results, expected, strict=True):
        # A row whose routing is a near tie may take another expert, so not all rows must agree.
        rows = (logits - expected_logits).norm(dim=1) / expected_logits.norm(dim=1)
        assert float(rows.median()) < 0.08
        assert float(rows.quantile(0.9)) < 0.6

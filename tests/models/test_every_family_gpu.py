"""Compares a tiny model of every family on the GPU with the CPU, for each attention implementation and KV layout."""

import pytest
import torch

from runtime.layers.kv_pool import LAYOUTS
from tests.models.tiny import EVERY, checkpoint_of, tiny_logits

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
# Of the median relative error of a row's logits. In a narrow dtype a few rows are routed to other experts.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@pytest.fixture(scope="module", params=EVERY)
def family(request, tmp_path_factory):
    """Returns a family's key, its checkpoint, and its logits on the CPU in float64."""
    path = checkpoint_of(request.param, tmp_path_factory.mktemp(request.param))
    return request.param, path, tiny_logits(request.param, path, torch.float64)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("attn_impl", ["triton_grouped", "triton", "torch"])
def test_the_device_equals_the_cpu(family, attn_impl, layout, dtype):
    key, path, expected = family
    logits = tiny_logits(key, path, dtype, "cuda", attn_impl, layout)
    errors = []
    for out, reference in zip(logits, expected, strict=True):
        assert out.dtype == torch.float32
        assert torch.isfinite(out).all()
        errors.append((out.cpu().double() - reference).norm(dim=1) / reference.norm(dim=1))
    rows = torch.cat(errors)
    assert float(rows.median()) < TOLERANCE[dtype]
    if dtype == torch.float32:
        assert float(rows.max()) < 10 * TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("form", "least", "maximum"),
    [("fp8", 0.01, 0.35), ("int8", 0.001, 0.1), ("int4", 0.01, 0.6), ("nvfp4", 0.01, 0.6)],
)
def test_quantized_models(family, form, least, maximum):
    """Only the median error is bounded: with fp8 the GPU also quantizes activations, which the CPU does not."""
    key, path, expected = family
    logits = torch.cat(tiny_logits(key, path, torch.bfloat16, "cuda", quantization=form))
    assert torch.isfinite(logits).all()
    reference = torch.cat(expected)
    rows = (logits.cpu().double() - reference).norm(dim=1) / reference.norm(dim=1)
    assert least < float(rows.median()) < maximum

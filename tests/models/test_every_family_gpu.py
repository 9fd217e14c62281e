"""Every family's tiny model on the device, with each attention and each layout, against the same model on the CPU."""

import pytest
import torch

from runtime.layers.kv_pool import LAYOUTS
from tests.models.tiny import EVERY, checkpoint_of, tiny_logits

pytestmark = pytest.mark.gpu  # asked for by name, so that a missing device fails them rather than skips them
# of the logits' error relative to the row, in the middle row: in a narrow dtype a few rows go to other experts
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@pytest.fixture(scope="module", params=EVERY)
def family(request, tmp_path_factory):
    """A family's checkpoint, and its logits on the CPU in float64."""
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


@pytest.mark.parametrize(("form", "least", "maximum"), [("fp8", 0.01, 0.35), ("int8", 0.001, 0.1), ("int4", 0.01, 0.6)])
def test_few_bits(family, form, least, maximum):
    """With fp8, of rows too, which the CPU leaves as they are: so the bulk of them is as near as these bits are."""
    key, path, expected = family
    logits = torch.cat(tiny_logits(key, path, torch.bfloat16, "cuda", quantization=form))
    assert torch.isfinite(logits).all()
    reference = torch.cat(expected)
    rows = (logits.cpu().double() - reference).norm(dim=1) / reference.norm(dim=1)
    assert least < float(rows.median()) < maximum

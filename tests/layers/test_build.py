"""What a model is built from, chosen for a device and a dtype."""

import pytest
import torch

from runtime.errors import ConfigError
from runtime.kernels.dispatch import TORCH, TRITON
from runtime.layers.build import Build


@pytest.mark.parametrize(
    ("device", "dtype", "kernels", "attn_impl"),
    [
        ("cpu", torch.float32, TORCH, "torch"),
        ("cuda", torch.bfloat16, TRITON, "triton_grouped"),
        ("cuda:1", torch.float64, TORCH, "triton_grouped"),
    ],
)
def test_defaults(device, dtype, kernels, attn_impl):
    build = Build.choose(device, dtype)
    assert build == Build(torch.device(device), dtype, kernels, attn_impl)
    assert Build.choose(device, dtype, "naive").attn_impl == "naive"


def test_only_floating_dtypes():
    with pytest.raises(ConfigError, match=r"torch\.int8 is not a floating point type"):
        Build.choose("cpu", torch.int8)


def test_weights_are_of_the_models_dtype_and_have_no_gradient():
    build = Build.choose("cpu", torch.bfloat16)
    for weight, shape in ((build.weight(5, 3, 2), (5, 3, 2)), (build.table(7, 2), (7, 2)), (build.parameter(3), (3,))):
        assert (weight.shape, weight.dtype, weight.nbytes) == (shape, torch.bfloat16, 2 * weight.size)
        assert (weight.tensor.shape, weight.tensor.dtype, weight.tensor.requires_grad) == (shape, weight.dtype, False)
    wide = build.parameter(4, dtype=torch.float32)
    assert (wide.shape, wide.dtype, wide.tensor.dtype) == ((4,), torch.float32, torch.float32)

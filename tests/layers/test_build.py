"""What a model is built from, chosen for a device and a dtype."""

from dataclasses import replace

import pytest
import torch

from runtime.errors import ConfigError
from runtime.kernels.dispatch import TORCH, TRITON
from runtime.kernels.gate import Activation
from runtime.kernels.gated_product import gated_product_reference
from runtime.kernels.product_norm import product_add_norm_reference
from runtime.layers.build import Build
from runtime.layers.lora import Room
from runtime.layers.mlp import SwiGLU
from runtime.layers.norm import RMSNorm
from runtime.layers.weight import TurnsWeight


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


@pytest.mark.parametrize(
    ("dtype", "quantization", "adapters", "deterministic", "turns"),
    [
        (torch.bfloat16, None, None, False, True),
        (torch.bfloat16, "int8", None, False, False),
        (torch.bfloat16, None, Room(2, 8), False, False),
        (torch.bfloat16, None, None, True, False),
        (torch.float64, None, None, False, False),
    ],
)
def test_dense_gates_lie_in_turns_where_a_kernel_takes_them_so(dtype, quantization, adapters, deterministic, turns):
    build = Build.choose("cuda", dtype, None, quantization, adapters, deterministic=deterministic)
    layer = SwiGLU(replace(build, device=torch.device("meta")), 32, 64)
    assert isinstance(layer.gate_up.weight, TurnsWeight) == turns
    assert layer.gate_up.weight.shape == (128, 32)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_layer_gives_the_same_however_its_gates_lie(activation):
    """With the reference in the kernel's place, and what it is normed with behind."""
    plain = Build.choose("cpu", torch.float64)

    def gated(x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
        return gated_product_reference(x, weight, activation)

    kernels = replace(TORCH, gated_product=gated, product_add_norm=product_add_norm_reference)
    layers = [SwiGLU(build, 16, 24, activation) for build in (plain, replace(plain, kernels=kernels))]
    norms = [RMSNorm(build, 16, 1e-6) for build in (plain, replace(plain, kernels=kernels))]
    drawn = torch.Generator().manual_seed(3)
    gates, ups, down, norm = (torch.randn(*shape, generator=drawn) for shape in ((24, 16), (24, 16), (16, 24), (16,)))
    for layer, after in zip(layers, norms, strict=True):
        layer.gate_up.weight.fill((slice(0, 24),), gates)
        layer.gate_up.weight.fill((slice(24, 48),), ups)
        layer.down.weight.fill((), down)
        assert after.weight is not None
        after.weight.fill((), norm)
    x, residual = (torch.randn(5, 16, generator=drawn, dtype=torch.float64) for _ in range(2))
    assert isinstance(layers[1].gate_up.weight, TurnsWeight)
    torch.testing.assert_close(*(layer(x) for layer in layers))
    torch.testing.assert_close(
        *(layer.add_normed(x, residual, norm) for layer, norm in zip(layers, norms, strict=True))
    )

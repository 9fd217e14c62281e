"""Tests of the layer factory, which selects kernels and attention for a device and a dtype."""

from dataclasses import replace

import pytest
import torch

from runtime.errors import ConfigError
from runtime.kernels.activation import Activation, fused_gate_up_reference
from runtime.kernels.layernorm import gemm_add_norm_reference
from runtime.kernels.ops import TORCH, TRITON, KernelSet
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.linear import Linear
from runtime.layers.lora import LoRABatch, LoRAConfig, LoRAWeight
from runtime.layers.mlp import GatedMLP
from runtime.layers.norm import RMSNorm
from runtime.parameters.sharding import WeightSlice
from runtime.parameters.weight import InterleavedWeight


@pytest.mark.parametrize(
    ("device", "dtype", "kernels", "attn_impl"),
    [
        ("cpu", torch.float32, TORCH, "torch"),
        ("cuda", torch.bfloat16, TRITON, "triton_grouped"),
        ("cuda:1", torch.float64, TORCH, "triton_grouped"),
    ],
)
def test_defaults(device, dtype, kernels, attn_impl):
    build = LayerFactory.create(device, dtype)
    assert build == LayerFactory(torch.device(device), dtype, kernels, attn_impl)
    assert LayerFactory.create(device, dtype, "naive").attn_impl == "naive"


def test_only_floating_dtypes():
    with pytest.raises(ConfigError, match=r"torch\.int8 is not a floating point type"):
        LayerFactory.create("cpu", torch.int8)


def test_weights_are_of_the_models_dtype_and_have_no_gradient():
    build = LayerFactory.create("cpu", torch.bfloat16)
    for weight, shape in (
        (build.weight(5, 3, 2), (5, 3, 2)),
        (build.vocab_weight(7, 2), (7, 2)),
        (build.parameter(3), (3,)),
    ):
        assert (weight.shape, weight.dtype, weight.nbytes) == (shape, torch.bfloat16, 2 * weight.size)
        assert (weight.tensor.shape, weight.tensor.dtype, weight.tensor.requires_grad) == (shape, weight.dtype, False)
    wide = build.parameter(4, dtype=torch.float32)
    assert (wide.shape, wide.dtype, wide.tensor.dtype) == ((4,), torch.float32, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "quantization", "adapters", "deterministic", "interleaved"),
    [
        (torch.bfloat16, None, None, False, True), (torch.bfloat16, "int8", None, False, False),
        (torch.bfloat16, None, LoRAConfig(2, 8), False, True), (torch.bfloat16, None, None, True, False),
        (torch.float64, None, None, False, False),
    ],
)  # fmt: skip
def test_dense_gates_are_interleaved_where_a_kernel_needs_it(dtype, quantization, adapters, deterministic, interleaved):
    build = LayerFactory.create("cuda", dtype, None, quantization, adapters, deterministic=deterministic)
    layer = GatedMLP(replace(build, device=torch.device("meta")), 32, 64)
    assert isinstance(layer.gate_up_proj.weight, LoRAWeight) == (adapters is not None)
    # the active weight if no adapter changes it in this forward
    assert isinstance(layer.gate_up_proj.weight.active, InterleavedWeight) == interleaved
    assert layer.gate_up_proj.weight.shape == (128, 32)


def _fused() -> KernelSet:
    """Returns a kernel set of references that includes those of the fused kernels."""

    def gated(x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
        return fused_gate_up_reference(x, weight, activation)

    return replace(TORCH, fused_gate_up=gated, gemm_add_norm=gemm_add_norm_reference)


def _drawn(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=drawn, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("adapters", [None, LoRAConfig(2, 8)])
def test_interleaved_gates_do_not_change_the_output(activation, adapters):
    """Also covers adapters, which change the layer or not."""
    factory = LayerFactory.create("cpu", torch.float64, lora_config=adapters)
    recorded = []
    gates, ups, down, weight, x, residual, low, high = _drawn(
        3, (24, 16), (24, 16), (16, 24), (16,), (5, 16), (5, 16), (8, 16), (48, 8)
    )
    for build in (factory, replace(factory, kernels=_fused())):
        layer, norm = GatedMLP(build, 16, 24, activation), RMSNorm(build, 16, 1e-6)
        first = layer.gate_up_proj.weight
        first.load((slice(0, 24),), gates)
        first.load((slice(24, 48),), ups)
        layer.down_proj.weight.load((), down)
        norm.weight.load((), weight)
        made = [layer(x), *layer.forward_add_norm(x, residual, norm)]
        if build.lora is not None:
            assert isinstance(first, LoRAWeight)
            every = WeightSlice.of(first.full_shape, ())
            first.allocate("gate_up", [every], build.device)
            first.load_adapter(1, {every: (low, high)})
            assert first.active is first.base
            build.lora.batch, build.lora.active_modules = _batch([-1, 1, 1, -1, 1]), first.module_bit
            assert first.active is first
            made.append(layer(x))
            assert not torch.allclose(made[-1], made[0])
            build.lora.batch = None
        assert isinstance(first.active, InterleavedWeight) == (build is not factory)
        recorded.append(made)
    torch.testing.assert_close(*recorded)


def _batch(slots: list[int]) -> LoRABatch:
    tiles = torch.tensor([[0, 0, len(slots)]], dtype=torch.int32)
    return LoRABatch(torch.tensor(slots, dtype=torch.int32), tiles, len(slots))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("adapters", [None, LoRAConfig(2, 8)])
def test_fused_add_norm_includes_bias_and_adapters(biased, adapters):
    build = replace(LayerFactory.create("cpu", torch.float64, lora_config=adapters), kernels=_fused())
    layer, norm = Linear(build, 16, 8, bias=biased), RMSNorm(build, 8, 1e-6)
    weight, scale, bias, x, residual, low, high = _drawn(4, (8, 16), (8,), (8,), (3, 16), (3, 8), (8, 16), (8, 8))
    layer.weight.load((), weight)
    norm.weight.load((), scale)
    if layer.bias is not None:
        layer.bias.load((), bias)
    expected = x @ weight.T + (bias if biased else 0)
    if build.lora is not None:
        assert isinstance(layer.weight, LoRAWeight)
        every = WeightSlice.of(layer.weight.full_shape, ())
        layer.weight.allocate("out", [every], build.device)
        layer.weight.load_adapter(0, {every: (low, high)})
        build.lora.batch, build.lora.active_modules = _batch([0, -1, 0]), layer.weight.module_bit
        expected[[0, 2]] += x[[0, 2]] @ low.T @ high.T
    made = layer.forward_add_norm(x, residual, norm)
    torch.testing.assert_close(made, norm.add(expected, residual))


def test_fp8_has_no_fused_gemm_and_norm():
    assert TRITON.for_quantization("fp8").gemm_add_norm is None
    assert TRITON.for_quantization("int4").gemm_add_norm is TRITON.gemm_add_norm

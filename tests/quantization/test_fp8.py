"""Tests of fp8 weights: quantization of a checkpoint's tensors, refusals, and the memory used while loading."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.bench.model_shapes import architecture
from runtime.errors import ConfigError
from runtime.kernels.activation import interleave_gate_up
from runtime.kernels.ops import TORCH, TRITON
from runtime.kernels.quantized_tensor import E4M3, quantize_fp8_reference
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.parameter import named_weights
from runtime.models.base import resolve_family
from runtime.quantization import base
from runtime.quantization.fp8 import Fp8Weight

CPU = torch.device("cpu")


def fp8(*shape: int, dtype: torch.dtype = torch.float32, interleaved: bool = False) -> Fp8Weight:
    return Fp8Weight(shape, dtype, CPU, TORCH, interleaved=interleaved)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_each_number_is_rounded_to_the_nearest():
    """Compares with all numbers of the format times each row's scale."""
    every = torch.arange(256, dtype=torch.uint8).view(E4M3).float()
    every = every[every.isfinite()].unique()
    x = normal(7, 300) * torch.tensor([1e-30, 1e-3, 1.0, 7.0, 1e4, 1e30, 0.0])[:, None]
    made = quantize_fp8_reference(x)
    torch.testing.assert_close(made.scales, (x.abs().amax(1) / 448).clamp(min=2.0**-120))
    nearest = (x[..., None] / made.scales[:, None, None] - every).abs().amin(-1)
    got = (x / made.scales[:, None] - made.values.float()).abs()
    torch.testing.assert_close(got, nearest, rtol=0, atol=1e-6)
    assert made.values.float().abs().amax(1).tolist() == [448.0] * 6 + [0.0]
    assert torch.equal(made.dequantize(torch.float32)[6], torch.zeros(300))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("piece", [1, 70, 1 << 22])
def test_parts_in_any_order_form_the_full_weight(monkeypatch, piece, interleaved):
    """Slices of a fused matrix, single experts and several experts give the same weight as one full tensor."""
    monkeypatch.setattr(base, "CHUNK_ELEMENTS", piece)
    values = normal(5, 32, 24).to(torch.bfloat16)
    weight = fp8(5, 32, 24, interleaved=interleaved)
    for index in ((slice(2, 4),), (4, slice(16, 32)), (4, slice(0, 16)), (0,), (1, slice(0, 32))):
        assert weight.load(index, values[index]) == values[index].numel()
    expected = quantize_fp8_reference(values)
    torch.testing.assert_close(weight.tensor, expected.dequantize(torch.float32), rtol=0, atol=0)
    codes = expected.values.view(torch.uint8)
    assert torch.equal(weight.kernel_arg.values.view(torch.uint8), interleave_gate_up(codes) if interleaved else codes)
    assert (weight.size, weight.nbytes) == (5 * 32 * 24, 5 * 32 * 24 + 5 * 32 * 4)
    matrix = fp8(48, 24)
    for first, last in ((16, 32), (0, 16), (32, 48)):
        assert matrix.load((slice(first, last),), normal(48, 24)[first:last]) == 16 * 24
    assert torch.equal(matrix.tensor, quantize_fp8_reference(normal(48, 24)).dequantize(torch.float32))


def test_a_part_has_complete_rows():
    with pytest.raises(AssertionError, match="got 2 of the 3 inputs that share a scale"):
        fp8(4, 3).load((slice(0, 4), slice(0, 2)), torch.ones(4, 2))


@pytest.mark.parametrize("interleaved", [False, True])
def test_values_that_are_not_finite_are_refused_as_in_every_format(interleaved):
    values = torch.tensor([[1.0, 2.0], [1e6, 0.0]])
    with pytest.raises(ConfigError, match=r"^holds values too large for torch.float16; choose another --dtype$"):
        fp8(2, 2, dtype=torch.float16, interleaved=interleaved).load((), values)
    assert fp8(2, 2, dtype=torch.bfloat16, interleaved=interleaved).load((), values) == 4
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(ConfigError, match=r"^holds NaN or infinite values$"):
            fp8(2, 2, interleaved=interleaved).load((), torch.tensor([[0.0, 1.0], [bad, 2.0]]))
    with pytest.raises(ConfigError, match=r"too large for torch\.float32"):
        fp8(1, 2, interleaved=False).load((), torch.tensor([[1e300, 0.0]], dtype=torch.float64))


class Largest(TorchDispatchMode):
    """Records the largest number of bytes that an operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.made = max(self.made, out.nbytes)
        return out


def test_loading_allocates_no_more_than_a_chunk(monkeypatch):
    """So a chunk of the tensor that is being read is all that is held in float32."""
    monkeypatch.setattr(base, "CHUNK_ELEMENTS", 1 << 10)
    for weight, index in ((fp8(64, 96, 32, interleaved=True), ()), (fp8(4096, 32), (slice(1024, 4096),))):
        values = normal(*weight.shape)[index].to(torch.bfloat16)
        with Largest() as largest:
            weight.load(index, values)
        assert largest.made <= 4 << 10


def test_gemms():
    weight, values = fp8(50, 24), normal(50, 24)
    weight.load((), values)
    x, bias = normal(9, 24), normal(50)
    expected = x @ weight.tensor.T
    torch.testing.assert_close(weight.matmul(x), expected)
    torch.testing.assert_close(weight.matmul(x, bias), expected + bias)
    assert 0.01 < (expected - x @ values.T).norm() / (x @ values.T).norm() < 0.04


def test_only_matrices_are_quantized():
    build = LayerFactory.create("cpu", torch.bfloat16, quantization="fp8")
    assert build.kernels == TORCH.for_quantization("fp8")
    assert build.kernels.fp8_linear is TORCH.fp8_linear is not TRITON.fp8_linear
    for weight in (build.weight(4, 6), build.weight(3, 4, 6), build.expert_gate_up(3, 4, 6)):
        assert isinstance(weight, Fp8Weight)
        assert weight.dtype == weight.tensor.dtype == torch.bfloat16
    for weight in (build.vocab_weight(4, 6), build.parameter(4), build.parameter(4, 6, dtype=torch.float32)):
        assert not isinstance(weight, Fp8Weight)


def test_unsupported_dtypes_and_gpus_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="--quantization fp8: cannot be combined with --dtype float64"):
        LayerFactory.create("cpu", torch.float64, quantization="fp8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an older GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ConfigError, match=r"8\.9 or later, but an older GPU has 8\.6; leave --quantization out"):
        LayerFactory.create("cuda", torch.bfloat16, quantization="fp8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert LayerFactory.create("cuda", torch.bfloat16, quantization="fp8").kernels == TRITON.for_quantization("fp8")


def test_fp8_halves_the_size_of_llada2_mini():
    config = architecture("llada2-mini")
    family = resolve_family(None, config)
    nbytes = []
    for quantization in (None, "fp8"):
        build = LayerFactory.create("meta", torch.bfloat16, quantization=quantization)
        nbytes.append(sum(weight.nbytes for weight in named_weights(family.make(family.parse(config), build)).values()))
    assert nbytes[1] <= 17.5e9 < 32e9 < nbytes[0]

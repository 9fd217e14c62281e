"""Tests of the formats of quantized weights: quantization of a checkpoint's tensors, errors, refusals and memory."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.bench.model_shapes import architecture
from runtime.errors import ConfigError
from runtime.kernels.activation import interleave_gate_up
from runtime.kernels.fp8_argmax import fp8_lm_head_argmax
from runtime.kernels.nvfp4 import Nvfp4, quantize_nvfp4
from runtime.kernels.ops import TORCH, TRITON
from runtime.kernels.quantized_tensor import (
    E4M3,
    GroupQuantized,
    pack,
    quantize_blocks,
    quantize_fp8_reference,
    quantize_groups,
    quantize_nf4,
    quantize_rows,
    unpack,
)
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import resolve_family
from runtime.parameters.sharding import Shard
from runtime.parameters.weight import UnquantizedWeight, named_weights
from runtime.quantization import base
from runtime.quantization.base import QuantizedWeight, get_format

CPU = torch.device("cpu")
GROUPS = ("int8", "int4", "int4_32", "fp8_blocks", "nvfp4", "int4_64_asymmetric", "int8_32_asymmetric", "nf4")
NAMES = (*GROUPS, "fp8")
groups = pytest.mark.parametrize("name", GROUPS)
names = pytest.mark.parametrize("name", NAMES)


def weight_of(name: str, *shape: int, dtype: torch.dtype = torch.float32, interleaved: bool = False) -> QuantizedWeight:
    return get_format(name).make(shape, dtype, CPU, TORCH, interleaved)


def rounded(name: str, x: torch.Tensor) -> GroupQuantized | Nvfp4:
    if name == "nvfp4":
        return quantize_nvfp4(x)
    if name.startswith("fp8"):
        return quantize_blocks(x, 128) if name == "fp8_blocks" else quantize_fp8_reference(x)
    if name == "int8":
        return quantize_rows(x)
    if name == "nf4":
        return quantize_nf4(x, 64)
    if name == "int8_32_asymmetric":
        packed = quantize_blocks(x, 32, torch.int8)
        return replace(packed, zeros=torch.zeros_like(packed.scales, dtype=torch.int8))
    packed = quantize_groups(x, {"int4_32": 32, "int4_64_asymmetric": 64}.get(name, 128))
    symmetric = torch.full_like(packed.scales, 8, dtype=torch.uint8)
    return replace(packed, zeros=symmetric) if "asymmetric" in name else packed


def shifted(packed: GroupQuantized) -> GroupQuantized:
    """Returns other zero points, if there are any."""
    if getattr(packed, "zeros", None) is None:
        return packed
    count = torch.arange(packed.zeros.numel()).view(packed.zeros.shape) % 16
    return replace(packed, zeros=count.to(packed.zeros.dtype))


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8) if x.element_size() == 1 else x


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("size", "group"), [(256, 128), (80, 128), (96, 32), (130, 64)])
def test_packed_int4_codes_are_unpacked_unchanged(size, group):
    codes = torch.randint(-8, 8, (3, 5, size), generator=torch.Generator().manual_seed(size)).to(torch.int8)
    packed = pack(codes, group)
    assert packed.shape == (3, 5, -(-size // group) * group // 2)
    back = unpack(packed, group)
    assert torch.equal(back[..., :size], codes)
    assert not back[..., size:].any()
    if size >= group:
        low, high = int(codes[0, 0, 1]) + 8, int(codes[0, 0, 1 + group // 2]) + 8
        assert int(packed[0, 0, 1]) == low | high << 4


@names
def test_outputs_are_in_the_checkpoints_order_wherever_rows_are_stored(name):
    """`matmul`, which serves experts with LoRA, returns outputs in checkpoint order for interleaved weights too."""
    x, matrix = normal(5, 256), normal(64, 256)
    weights = [weight_of(name, 64, 256, interleaved=interleaved) for interleaved in (False, True)]
    for weight in weights:
        weight.load((), matrix)
    unquantized, turned = (weight.matmul(x) for weight in weights)
    torch.testing.assert_close(turned, unquantized, rtol=1e-4, atol=1e-4)
    part = weight_of(name, 3, 64, 256, interleaved=True)
    part.load((slice(None),), torch.stack([matrix * 2, matrix, matrix * 3]))
    torch.testing.assert_close(part.select(1).matmul(x), unquantized, rtol=1e-4, atol=1e-4)


def test_int8_codes_are_rounded_to_the_nearest():
    x = normal(7, 300) * torch.tensor([1e-30, 1e-3, 1.0, 7.0, 1e4, 1e30, 0.0])[:, None]
    made = quantize_rows(x)
    assert made.values.abs().amax(1).tolist() == [127] * 6 + [0]
    assert ((made.dequantize(torch.float32) - x).abs() <= made.scales * 0.50001).all()


def test_fp8_numbers_are_rounded_to_the_nearest():
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


def test_int4_scales_minimize_the_error_per_group():
    """The error is at most that of a scale that maps the largest number to 7 or to -8. Groups are independent."""
    x = normal(6, 300) * torch.tensor([1e-20, 1e-3, 1.0, 1e4, 1e20, 0.0])[:, None]
    made = quantize_groups(x, 128)
    dequantized = made.dequantize(torch.float64)
    for number, part in enumerate(x.split(128, 1)):
        largest = part.gather(1, part.abs().argmax(1, keepdim=True)).double()
        cost = (dequantized[:, number * 128 : number * 128 + 128] - part).square().sum(1)
        for end in (7, -8):
            scale = torch.where(largest == 0, 1.0, largest / end)
            unquantized = ((part / scale).round().clamp(-8, 7) * scale - part).square().sum(1)
            assert (cost <= unquantized * (1 + 1e-6) + 1e-300).all()
        alone = quantize_groups(part, 128)
        assert torch.equal(alone.dequantize(torch.float64), dequantized[:, number * 128 : number * 128 + 128])
    assert not dequantized[5].any()


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("int8", 0.004, 0.012),
        ("int4", 0.06, 0.11),
        ("fp8_blocks", 0.015, 0.035),
        ("nvfp4", 0.06, 0.11),
        ("fp8", 0.01, 0.04),
    ],
)  # fmt: skip
def test_the_error_of_a_quantized_layer(name, low, high):
    """Checks ||out - ref|| / ||ref|| for normally distributed weights, as stated in docs/guide/quantization.md."""
    weight, values, x = weight_of(name, 300, 512), normal(300, 512), normal(9, 512)
    weight.load((), values)
    bias = normal(300)
    expected = x @ weight.tensor.T
    torch.testing.assert_close(weight.matmul(x), expected)
    torch.testing.assert_close(weight.matmul(x, bias), expected + bias)
    assert low < (expected - x @ values.T).norm() / (x @ values.T).norm() < high


@names
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("piece", [1, 70, 1 << 22])
def test_parts_in_any_order_form_the_full_weight(monkeypatch, name, piece, interleaved):
    """Slices of a fused matrix, single experts and several experts give the same weight as one full tensor."""
    monkeypatch.setattr(base, "CHUNK_ELEMENTS", piece)
    values = normal(5, 32, 24).to(torch.bfloat16)
    weight = weight_of(name, 5, 32, 24, interleaved=interleaved)
    for index in ((slice(2, 4),), (4, slice(16, 32)), (4, slice(0, 16)), (0,), (1, slice(0, 32))):
        assert weight.load(index, values[index]) == values[index].numel()
    expected = rounded(name, values)
    torch.testing.assert_close(weight.tensor, expected.dequantize(torch.float32), rtol=0, atol=0)
    for pair in zip(weight.kernel_arg.parts, expected.parts, strict=True):
        stored, right = (bits(part).view(5, 32, -1) for part in pair)
        assert torch.equal(stored, interleave_gate_up(right) if interleaved else right)
    assert (weight.size, weight.nbytes) == (5 * 32 * 24, sum(part.nbytes for part in expected.parts))
    matrix = weight_of(name, 48, 24)
    for first, last in ((16, 32), (0, 16), (32, 48)):
        assert matrix.load((slice(first, last),), normal(48, 24)[first:last]) == 16 * 24
    assert torch.equal(matrix.tensor, rounded(name, normal(48, 24)).dequantize(torch.float32))


@groups
@pytest.mark.parametrize("interleaved", [False, True])
def test_codes_of_a_checkpoint_are_stored_unchanged(name, interleaved):
    """Covers the gate and up halves of experts, loaded one by one, and a submatrix."""
    values = normal(3, 32, 200)
    weight, selected = weight_of(name, 3, 32, 200, interleaved=interleaved), shifted(rounded(name, values))
    for expert in range(3):
        for half in (slice(16, 32), slice(0, 16)):
            assert weight.load_quantized((expert, half), selected[expert].submatrix(half, range(200))) == 16 * 200
    assert torch.equal(weight.tensor, selected.dequantize(torch.float32))
    with pytest.raises(ConfigError, match=r"^is \[32, 200\], not \[16, 200\]$"):
        weight.load_quantized((0, slice(0, 16)), selected[0])
    unquantized = UnquantizedWeight((32, 200), torch.float32, CPU)
    unquantized.load_quantized((), selected[1])
    assert torch.equal(unquantized.tensor, weight.tensor[1])
    part = selected[0].submatrix(slice(4, 8), range(128, 200))
    assert torch.equal(part.dequantize(torch.float32), weight.tensor[0, 4:8, 128:])


def test_columns_in_activation_order_are_refused_where_they_would_be_wrong():
    """One order per matrix, no experts, and no split of the inputs; else outputs would be wrong."""
    packed, order = rounded("int4_32", normal(6, 64)), torch.arange(64).flip(0)
    ordered = replace(packed, order=order)
    weight = weight_of("int4_32", 12, 64)
    assert weight.load_quantized((slice(0, 6),), ordered) == 6 * 64
    for other in (packed, replace(packed, order=torch.arange(64).roll(1))):
        with pytest.raises(ConfigError, match=r"in another activation order .* than other parts of the same weight"):
            weight.load_quantized((slice(6, 12),), other)
    assert weight.load_quantized((slice(6, 12),), ordered) == 6 * 64
    expected = torch.cat([packed.dequantize(torch.float32).flip(1)] * 2)
    assert torch.equal(weight.tensor, expected)
    torch.testing.assert_close(weight.matmul(normal(3, 64)), normal(3, 64) @ expected.T)
    stack = weight_of("int4_32", 3, 6, 64)
    for experts, index in ((stack, (1,)), (stack.select(2), ())):
        with pytest.raises(ConfigError, match=r"activation order .* not supported for experts; use a checkpoint whose"):
            experts.load_quantized(index, ordered)
    half = weight_of("int4_32", 6, 32).with_shard(Shard(-1, 64, (range(32),)))
    with pytest.raises(ConfigError, match=r"activation order .* set --tensor-parallel-size to 1"):
        half.load_quantized((), ordered)


def test_inputs_may_be_split_only_between_groups():
    values, weight = normal(6, 300), weight_of("int4", 6, 300)
    for first, last in ((128, 300), (0, 128)):
        assert weight.load((slice(None), slice(first, last)), values[:, first:last]) == 6 * (last - first)
    assert torch.equal(weight.tensor, quantize_groups(values, 128).dequantize(torch.float32))
    with pytest.raises(ConfigError, match="cut at inputs 0 and 100, but each 128 of them share a scale"):
        weight.load((slice(None), slice(0, 100)), values[:, :100])
    selected = weight.kernel_arg.submatrix(slice(2, 5), range(128, 300))
    assert torch.equal(selected.dequantize(torch.float32), weight.tensor[2:5, 128:])
    assert selected.shape == (3, 172)
    with pytest.raises(AssertionError, match="got 100 of the 300 inputs that share a scale"):
        weight_of("int8", 6, 300).load((slice(None), slice(0, 100)), values[:, :100])
    with pytest.raises(AssertionError, match="got 2 of the 3 inputs that share a scale"):
        weight_of("fp8", 4, 3).load((slice(0, 4), slice(0, 2)), torch.ones(4, 2))


@names
@pytest.mark.parametrize("interleaved", [False, True])
def test_values_that_are_not_finite_are_refused_as_in_every_format(name, interleaved):
    values = torch.tensor([[1.0, 2.0], [1e6, 0.0]])
    with pytest.raises(ConfigError, match=r"^holds values too large for torch.float16; choose another --dtype$"):
        weight_of(name, 2, 2, dtype=torch.float16, interleaved=interleaved).load((), values)
    assert weight_of(name, 2, 2, dtype=torch.bfloat16, interleaved=interleaved).load((), values) == 4
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(ConfigError, match=r"^holds NaN or infinite values$"):
            weight_of(name, 2, 2, interleaved=interleaved).load((), torch.tensor([[0.0, 1.0], [bad, 2.0]]))
    with pytest.raises(ConfigError, match=r"too large for torch\.float32"):
        weight_of(name, 2, 2).load((), torch.tensor([[1e300, 0.0]] * 2, dtype=torch.float64))


@names
def test_only_matrices_are_quantized(name):
    build = LayerFactory.create("cpu", torch.bfloat16, quantization=name)
    assert build.kernels == TORCH.for_quantization(name)
    assert build.kernels.group_quantized_linear is TORCH.group_quantized_linear is not TRITON.group_quantized_linear
    assert build.kernels.fp8_linear is TORCH.fp8_linear is not TRITON.fp8_linear
    for weight in (build.weight(4, 6), build.weight(3, 4, 6), build.expert_gate_up(3, 4, 6)):
        assert isinstance(weight, QuantizedWeight)
        assert weight.dtype == weight.tensor.dtype == torch.bfloat16
    for weight in (build.vocab_weight(4, 6), build.parameter(4), build.parameter(4, 6, dtype=torch.float32)):
        assert not isinstance(weight, QuantizedWeight)


@pytest.mark.parametrize(("name", "max_bytes"), [("int8", 17.5e9), ("fp8", 17.5e9), ("int4", 10e9)])
def test_size_of_llada2_mini(name, max_bytes):
    config = architecture("llada2-mini")
    family = resolve_family(None, config)
    model = family.make(family.parse(config), LayerFactory.create("meta", torch.bfloat16, quantization=name))
    assert 0.9 * max_bytes < sum(weight.nbytes for weight in named_weights(model).values()) <= max_bytes


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
    for weight, index in (
        (weight_of("fp8", 64, 96, 32, interleaved=True), ()),
        (weight_of("fp8", 4096, 32), (slice(1024, 4096),)),
    ):
        values = normal(*weight.shape)[index].to(torch.bfloat16)
        with Largest() as largest:
            weight.load(index, values)
        assert largest.made <= 4 << 10


def test_unsupported_dtypes_and_gpus_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="--quantization fp8: cannot be combined with --dtype float64"):
        LayerFactory.create("cpu", torch.float64, quantization="fp8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an older GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ConfigError, match=r"8\.9 or later, but an older GPU has 8\.6; leave --quantization out"):
        LayerFactory.create("cuda", torch.bfloat16, quantization="fp8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    kernels = TRITON.for_quantization("fp8")
    assert LayerFactory.create("cuda", torch.bfloat16, quantization="fp8").kernels == kernels
    build = LayerFactory.create("cuda", torch.bfloat16, quantization="fp8", fp8_lm_head=True)
    assert build.kernels == replace(kernels, fp8_lm_head_argmax=fp8_lm_head_argmax)

"""Tests of parameters: they are loaded by indices of the full weight, and used in GEMMs."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.kernels.activation import interleave_gate_up, interleave_group
from runtime.kernels.ops import TRITON
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.linear import Linear
from runtime.parameters.sharding import WeightSlice
from runtime.parameters.weight import DeferredChecks, Weight, named_weights, require_finite, tensor_of


def unquantized(*shape: int, dtype: torch.dtype = torch.float32) -> Weight:
    return LayerFactory.create("cpu", dtype).parameter(*shape)


def some_index(shape: tuple[int, ...], draw: random.Random) -> tuple[int | slice, ...]:
    index: list[int | slice] = []
    for size in shape[: draw.randint(0, len(shape))]:
        first, last = sorted(draw.sample(range(size + 1), 2))
        index.append(draw.choice([first, slice(first, last), slice(None), slice(first, None), slice(None, last)]))
    return tuple(index)


@pytest.mark.parametrize("shape", [(9,), (5, 7), (4, 6, 3)])
def test_slices_equal_torch_indexing(shape):
    draw, coordinates = random.Random(len(shape)), torch.arange(torch.Size(shape).numel()).view(shape)
    for _ in range(100):
        index = some_index(shape, draw)
        part, expected = WeightSlice.of(shape, index), coordinates[index]
        assert part.shape == expected.shape
        assert torch.equal(coordinates[part.slices].flatten(), expected.flatten())
        assert part.size == expected.numel()
        weight, values = unquantized(*shape, dtype=torch.float64), torch.randn(part.shape, dtype=torch.float32)
        weight.load((), torch.zeros(shape))
        assert weight.load(index, values) == part.size
        full = torch.zeros(shape, dtype=torch.float64)
        full[index] = values.double()
        assert torch.equal(weight.tensor, full)


@pytest.mark.parametrize(
    "index",
    [(4,), (-1,), (slice(0, 5),), (slice(2, 2),), (slice(-2, None),), (slice(0, 4, 2),), (slice(3, 1), 0), (0, 0, 0)],
)
def test_invalid_indices_are_refused(index):
    with pytest.raises(ValueError, match=r"is no part of a weight \[4, 6\]"):
        WeightSlice.of((4, 6), index)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (2, 1), (6, 2), (1, 2, 6), ()])
def test_nothing_is_broadcast(shape):
    with pytest.raises(ConfigError) as error:
        unquantized(4, 6).load((slice(1, 3),), torch.ones(shape))
    assert str(error.value) == f"is {list(shape)}, not [2, 6]"


def test_values_that_are_not_finite_after_the_cast_are_refused():
    values = torch.tensor([[1.0, 2.0], [1e6, 0.0]])
    with pytest.raises(ConfigError, match=r"^holds values too large for torch.float16; choose another --dtype$"):
        unquantized(2, 2, dtype=torch.float16).load((), values)
    assert unquantized(2, 2, dtype=torch.bfloat16).load((), values) == 4
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ConfigError, match=r"^holds NaN or infinite values$"):
            unquantized(2).load((), torch.tensor([0.0, bad]))


def test_gemms():
    weight, values = unquantized(5, 3), torch.randn(5, 3)
    weight.load((), values)
    x, bias, ids = torch.randn(4, 3), torch.randn(5), torch.tensor([4, 0, 4])
    torch.testing.assert_close(weight.matmul(x), x @ values.T)
    torch.testing.assert_close(weight.matmul(x, bias), x @ values.T + bias)
    assert torch.equal(weight.rows(ids), values[ids])
    assert (weight.size, weight.nbytes) == (15, 60)
    assert weight.kernel_arg is tensor_of(weight) is weight.tensor
    assert tensor_of(None) is None


@pytest.mark.parametrize("shape", [(3, 32, 5), (2, 24, 4), (1, 10, 3), (2, 2, 1)])
def test_interleaved_gates_are_loaded_in_checkpoint_order(shape):
    draw = random.Random(shape[1])
    build = replace(LayerFactory.create("cpu", torch.float32), kernels=TRITON)
    values = torch.randn(shape)
    weight, half = build.expert_gate_up(*shape), shape[1] // 2
    for index in ((), *((expert, part) for expert in range(shape[0]) for part in (slice(half), slice(half, None)))):
        weight.kernel_arg.fill_(torch.nan)
        weight.load((), torch.zeros(shape))
        weight.load(index, values[index])
        expected = torch.zeros(shape)
        expected[index] = values[index]
        assert torch.equal(weight.tensor, expected)
    for _ in range(50):
        index = some_index(shape, draw)
        weight.load((), values)
        weight.load(index, -values[index])
        expected = values.clone()
        expected[index] = -values[index]
        assert torch.equal(weight.tensor, expected)
        assert torch.equal(weight.kernel_arg, interleave_gate_up(expected))
    run = interleave_group(half)
    assert torch.equal(weight.kernel_arg[:, :run], weight.tensor[:, :run])
    assert torch.equal(weight.kernel_arg[:, run : 2 * run], weight.tensor[:, half : half + run])
    assert weight.nbytes == 4 * weight.size
    with pytest.raises(ConfigError, match=r"^holds NaN or infinite values$"):
        weight.load((), torch.full(shape, torch.nan))


def test_a_split_router_weight_equals_the_weight():
    build = replace(LayerFactory.create("cpu", torch.bfloat16), kernels=TRITON)
    weight, values = build.router_weight(6, 40), torch.randn(6, 40)
    for row in range(6):
        assert weight.load((row,), values[row].double()) == 40
    assert torch.equal(weight.tensor, values)
    assert (weight.kernel_arg.dtype, weight.nbytes, weight.dtype) == (torch.bfloat16, 6 * weight.size, torch.float32)
    with pytest.raises(ConfigError, match=r"^holds NaN or infinite values$"):
        weight.load((0,), torch.full((40,), torch.inf))
    unquantized = LayerFactory.create("cpu", torch.bfloat16).router_weight(6, 40).kernel_arg
    assert (unquantized.dtype, unquantized.dim()) == (torch.float32, 2)


def test_weights_are_named_by_their_module_path():
    build = LayerFactory.create("cpu", torch.float32)
    module = nn.Module()
    module.top = build.vocab_weight(4, 2)
    module.inner = nn.ModuleList([Linear(build, 2, 3, bias=True), Linear(build, 3, 2, bias=False)])
    found = named_weights(module)
    assert list(found) == ["top", "inner.0.weight", "inner.0.bias", "inner.1.weight"]
    assert found["inner.0.bias"] is module.inner[0].bias


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_one_value_that_is_not_finite_is_found(dtype: torch.dtype) -> None:
    values = torch.full((37, 3), -torch.finfo(dtype).max, dtype=dtype)
    require_finite(values, values)
    for value in (float("nan"), float("inf"), -float("inf")):
        for at in (0, 55, 110):
            wrong = values.clone()
            wrong.view(-1)[at] = value
            with pytest.raises(ConfigError, match="holds NaN or infinite values"):
                require_finite(wrong, wrong)
    large = torch.full((2,), 1e300, dtype=torch.float64)
    if dtype != torch.float64:
        with pytest.raises(ConfigError, match=f"holds values too large for {dtype}"):
            require_finite(large.to(dtype), large)


def test_deferred_checks_name_the_first_tensor_that_is_not_finite() -> None:
    checks = DeferredChecks()
    for name, largest in (("a", torch.tensor(1.0, dtype=torch.bfloat16)), ("b", torch.tensor(2.0))):
        checks.name = name
        checks.add(largest)
    assert checks.failed(wait=False) is None
    assert checks.failed() is None
    for name, value in (("a", 1.0), ("b", float("nan")), ("c", float("inf"))):
        checks.name = name
        checks.add(torch.tensor(value))
    assert checks.failed(wait=False) is None
    assert checks.failed() == "b"
    assert checks.failed() is None

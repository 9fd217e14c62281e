"""The kernels of eight bits on the device, in the shapes of LLaDA2.0-mini and awkward ones, and what loading holds."""

import pytest
import torch

from runtime.kernels.ops import TRITON
from runtime.quantization.fp8 import Fp8Weight
from tests.kernels import fp8_cases

pytestmark = pytest.mark.gpu  # asked for by name, so that a missing device fails them rather than skips them
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=list(FLOATS))


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(1, 2048), (2048, 2048), (16384, 512), (33, 5120), (7, 100)])
def test_quantise(rows, size, dtype):
    fp8_cases.check_quantise(rows, size, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(1, 2048), (2048, 512), (33, 5120), (7, 100), (40, 14336)])
def test_made_beside(rows, size, dtype):
    fp8_cases.check_made_beside(rows, size, "silu", dtype, "cuda")


@dtypes
@pytest.mark.parametrize("rows", [1, 32, 200, 1024, 2048, 8192])
@pytest.mark.parametrize(("inputs", "outputs", "biased"), [(2048, 3072, False), (5120, 2048, True)])
def test_linear(rows, inputs, outputs, biased, dtype):
    fp8_cases.check_linear(rows, inputs, outputs, biased, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(33, 100, 36), (5000, 48, 24), (3, 20, 7)])
def test_linear_of_awkward_sizes(rows, inputs, outputs, dtype):
    fp8_cases.check_linear(rows, inputs, outputs, True, dtype, "cuda")


@dtypes
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("rows", [1, 32, 512, 2048])
def test_experts(rows, crowded, dtype):
    fp8_cases.check_moe(rows, 512, 512, 64, 8, True, crowded, dtype, "cuda", dead=0.1)


@pytest.mark.parametrize("rows", [32, 256, 1024, 2048, 8192])
def test_experts_in_minis_shape(rows):
    fp8_cases.check_moe(rows, 2048, 512, 256, 8, True, False, torch.bfloat16, "cuda")


@dtypes
@pytest.mark.parametrize(("hidden", "width", "experts", "top_k"), [(48, 24, 6, 3), (256, 96, 8, 2), (100, 36, 3, 1)])
def test_experts_of_awkward_sizes(hidden, width, experts, top_k, dtype):
    fp8_cases.check_moe(130, hidden, width, experts, top_k, False, False, dtype, "cuda", "gelu_tanh")


def test_loading_holds_little_more_than_the_result():
    """Experts of 805 MB in bfloat16, which a checkpoint holds as one tensor."""
    values = torch.randn(256, 1024, 1536, dtype=torch.bfloat16)
    weight = Fp8Weight(values.shape, torch.bfloat16, torch.device("cuda"), TRITON.fp8, interleaved=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    weight.load((), values)
    assert torch.cuda.max_memory_allocated() - before < 0.2 * values.nbytes

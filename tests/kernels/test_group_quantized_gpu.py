"""The kernels of weights of few bits on the device, in the shapes of LLaDA2.0-mini and awkward ones, and what loading
holds."""

import pytest
import torch

from runtime.kernels.ops import TRITON
from runtime.quantization.int4_int8 import GroupQuantizedWeight
from tests.kernels import group_quantized_cases

pytestmark = pytest.mark.gpu  # asked for by name, so that a missing device fails them rather than skips them
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=list(FLOATS))
kinds = pytest.mark.parametrize("kind", group_quantized_cases.KINDS)


@kinds
@pytest.mark.parametrize("rows", [1, 32, 150, 2048])
@pytest.mark.parametrize(("inputs", "outputs", "biased"), [(2048, 3072, False), (5120, 2048, True)])
def test_linear(rows, inputs, outputs, biased, kind):
    group_quantized_cases.check_linear(rows, inputs, outputs, biased, kind, torch.bfloat16, "cuda")


@kinds
@dtypes
@pytest.mark.parametrize(("rows", "size"), [(3072, 2048), (35, 200)])
def test_made_whole(rows, size, kind, dtype):
    group_quantized_cases.check_whole(rows, size, kind, dtype, "cuda")


@kinds
@dtypes
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(33, 100, 36), (600, 80, 24), (3, 20, 7)])
def test_linear_of_awkward_sizes(rows, inputs, outputs, kind, dtype):
    group_quantized_cases.check_linear(rows, inputs, outputs, True, kind, dtype, "cuda")


@kinds
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("rows", [1, 32, 512, 2048])
def test_experts(rows, crowded, kind):
    group_quantized_cases.check_moe(rows, 512, 512, 64, 8, True, crowded, kind, torch.bfloat16, "cuda", dead=0.1)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("rows", [32, 1024])
def test_experts_in_minis_shape(rows, kind):
    group_quantized_cases.check_moe(rows, 2048, 512, 256, 8, True, False, kind, torch.bfloat16, "cuda")


@kinds
@dtypes
@pytest.mark.parametrize(("hidden", "width", "experts", "top_k"), [(48, 24, 6, 3), (100, 36, 3, 1)])
def test_experts_of_awkward_sizes(hidden, width, experts, top_k, kind, dtype):
    group_quantized_cases.check_moe(130, hidden, width, experts, top_k, False, False, kind, dtype, "cuda", "gelu_tanh")


@pytest.mark.parametrize(("kind", "run"), [(torch.int8, None), (torch.uint8, 128)], ids=["int8", "int4"])
def test_loading_holds_little_more_than_the_result(kind, run):
    """Experts of 805 MB in bfloat16, which a checkpoint holds as one tensor."""
    values = torch.randn(256, 1024, 1536, dtype=torch.bfloat16)
    device = torch.device("cuda")
    weight = GroupQuantizedWeight(
        values.shape, torch.bfloat16, device, TRITON.group_quantized, code_dtype=kind, group_size=run, interleaved=True
    )
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    weight.load((), values)
    assert torch.cuda.max_memory_allocated() - before < 0.2 * values.nbytes

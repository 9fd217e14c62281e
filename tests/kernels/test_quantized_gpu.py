"""Tests of the kernels of quantized weights on the GPU, and of peak memory while weights are loaded.

The shapes are those of LLaDA2.0-mini, and odd ones.
"""

import pytest
import torch

from runtime.kernels.ops import TRITON
from runtime.quantization.fp8 import Fp8Weight
from runtime.quantization.int4_int8 import GroupQuantizedWeight
from tests.kernels import quantized_cases

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=list(FLOATS))
kinds = pytest.mark.parametrize("kind", quantized_cases.KINDS)


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(1, 2048), (2048, 2048), (16384, 512), (33, 5120), (7, 100)])
def test_fp8_quantize(rows, size, dtype):
    quantized_cases.check_quantize_fp8(rows, size, dtype, "cuda")


@dtypes
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(512, 2048), (1024, 512), (24, 5120), (4, 14336), (3, 100), (1, 1), (6, 3)])
def test_fp8_weight(rows, size, dtype, interleaved):
    quantized_cases.check_fp8_weight(rows, size, dtype, "cuda", interleaved)


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(64, 2048), (5, 1030), (2, 1)])
def test_fp8_weight_that_is_not_finite(rows, size, dtype):
    quantized_cases.check_fp8_weight_that_is_not_finite(rows, size, dtype, "cuda")


@dtypes
def test_fp8_weight_that_overflows(dtype):
    quantized_cases.check_fp8_weight_overflow(dtype, "cuda")


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(1, 2048), (2048, 512), (33, 5120), (7, 100), (40, 14336)])
def test_fp8_attached(rows, size, dtype):
    quantized_cases.check_attached_fp8(rows, size, "silu", dtype, "cuda")


@dtypes
@pytest.mark.parametrize("rows", [1, 32, 200, 1024, 2048, 8192])
@pytest.mark.parametrize(("inputs", "outputs", "biased"), [(2048, 3072, False), (5120, 2048, True)])
def test_fp8_linear(rows, inputs, outputs, biased, dtype):
    quantized_cases.check_fp8_linear(rows, inputs, outputs, biased, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(33, 100, 36), (5000, 48, 24), (3, 20, 7)])
def test_fp8_linear_of_awkward_sizes(rows, inputs, outputs, dtype):
    quantized_cases.check_fp8_linear(rows, inputs, outputs, True, dtype, "cuda")


@dtypes
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("rows", [1, 32, 512, 2048])
def test_fp8_experts(rows, crowded, dtype):
    quantized_cases.check_fp8_moe(rows, 512, 512, 64, 8, True, crowded, dtype, "cuda", dead=0.1)


@pytest.mark.parametrize("rows", [32, 256, 1024, 2048, 8192])
def test_fp8_experts_in_minis_shape(rows):
    quantized_cases.check_fp8_moe(rows, 2048, 512, 256, 8, True, False, torch.bfloat16, "cuda")


@dtypes
@pytest.mark.parametrize(("hidden", "width", "experts", "top_k"), [(48, 24, 6, 3), (256, 96, 8, 2), (100, 36, 3, 1)])
def test_fp8_experts_of_awkward_sizes(hidden, width, experts, top_k, dtype):
    quantized_cases.check_fp8_moe(130, hidden, width, experts, top_k, False, False, dtype, "cuda", "gelu_tanh")


def test_fp8_loading_holds_little_more_than_the_result():
    """Experts of 805 MB in bfloat16, which a checkpoint holds as one tensor."""
    values = torch.randn(256, 1024, 1536, dtype=torch.bfloat16)
    weight = Fp8Weight(values.shape, torch.bfloat16, torch.device("cuda"), TRITON, interleaved=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    weight.load((), values)
    assert torch.cuda.max_memory_allocated() - before < 0.2 * values.nbytes


@kinds
@pytest.mark.parametrize("rows", [1, 32, 150, 2048])
@pytest.mark.parametrize(("inputs", "outputs", "biased"), [(2048, 3072, False), (5120, 2048, True)])
def test_linear(rows, inputs, outputs, biased, kind):
    quantized_cases.check_group_quantized_linear(rows, inputs, outputs, biased, kind, torch.bfloat16, "cuda")


@kinds
@dtypes
@pytest.mark.parametrize(("rows", "size"), [(3072, 2048), (35, 200)])
def test_dequantize(rows, size, kind, dtype):
    quantized_cases.check_dequantize(rows, size, kind, dtype, "cuda")


@kinds
@dtypes
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(33, 100, 36), (600, 80, 24), (3, 20, 7)])
def test_linear_of_awkward_sizes(rows, inputs, outputs, kind, dtype):
    quantized_cases.check_group_quantized_linear(rows, inputs, outputs, True, kind, dtype, "cuda")


@kinds
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("rows", [1, 32, 512, 2048])
def test_experts(rows, crowded, kind):
    quantized_cases.check_group_quantized_moe(
        rows, 512, 512, 64, 8, True, crowded, kind, torch.bfloat16, "cuda", dead=0.1
    )


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("rows", [32, 1024])
def test_experts_in_minis_shape(rows, kind):
    quantized_cases.check_group_quantized_moe(rows, 2048, 512, 256, 8, True, False, kind, torch.bfloat16, "cuda")


@kinds
@dtypes
@pytest.mark.parametrize(("hidden", "width", "experts", "top_k"), [(48, 24, 6, 3), (100, 36, 3, 1)])
def test_experts_of_awkward_sizes(hidden, width, experts, top_k, kind, dtype):
    quantized_cases.check_group_quantized_moe(
        130, hidden, width, experts, top_k, False, False, kind, dtype, "cuda", "gelu_tanh"
    )


@pytest.mark.parametrize(("kind", "run"), [(torch.int8, None), (torch.uint8, 128)], ids=["int8", "int4"])
def test_loading_holds_little_more_than_the_result(kind, run):
    """Experts of 805 MB in bfloat16, which a checkpoint holds as one tensor."""
    values = torch.randn(256, 1024, 1536, dtype=torch.bfloat16)
    device = torch.device("cuda")
    weight = GroupQuantizedWeight(
        values.shape, torch.bfloat16, device, TRITON, code_dtype=kind, group_size=run, interleaved=True
    )
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    weight.load((), values)
    assert torch.cuda.max_memory_allocated() - before < 0.2 * values.nbytes

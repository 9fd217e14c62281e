"""Tests of the kernels of quantized weights on the GPU, and of peak memory while weights are loaded."""

import pytest
import torch

from runtime.kernels.ops import TRITON
from runtime.quantization.base import get_format
from tests.kernels import quantized_cases
from tests.kernels.grouped_gemm_cases import CONFIGS, ROUTED, check_grouped_gemms
from tests.kernels.tables import ALL, table

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
MINI, WIDE = (2048, 3072, False), (5120, 2048, True)
AWKWARD = ((48, 24, 6, 3), (100, 36, 3, 1))
HALF = (torch.bfloat16,)
CROWDED = [(rows, 512, 512, 64, 8, True, crowded) for crowded in (False, True) for rows in (1, 32, 512, 2048)]
KERNELS = [
    *table("fp8 quantize", quantized_cases.check_quantize_fp8, ALL, (1, 2048), (2048, 2048), (16384, 512), (33, 5120),
           (7, 100)),
    *(row for interleaved in (False, True) for row in table(
        "fp8 weight", quantized_cases.check_fp8_weight, ALL, (512, 2048), (1024, 512), (24, 5120), (4, 14336), (3, 100),
        (1, 1), (6, 3), interleaved=interleaved)),
    *table("fp8 not finite", quantized_cases.check_fp8_weight_that_is_not_finite, ALL, (64, 2048), (5, 1030), (2, 1)),
    *table("fp8 overflow", quantized_cases.check_fp8_weight_overflow, ALL, ()),
    *table("fp8 attached", quantized_cases.check_attached_fp8, ALL, (1, 2048, "silu"), (2048, 512, "silu"),
           (33, 5120, "silu"), (7, 100, "silu"), (40, 14336, "silu")),
    *table("fp8 head", quantized_cases.check_fp8_argmax, HALF, *(
        (rows, 2048, 157_184, (), dead) for rows, dead in ((1, None), (16, None), (64, 20), (1000, 24), (2048, None)))),
    *table("fp8 head of awkward sizes", quantized_cases.check_fp8_argmax, HALF, (33, 700, 5000, (4999,), 7)),
    *table("fp8 linear", quantized_cases.check_fp8_linear, ALL, *(
        (rows, *shape) for rows in (1, 32, 200, 1024, 2048, 8192) for shape in (MINI, WIDE)),
        (33, 100, 36, True), (5000, 48, 24, True), (3, 20, 7, True)),
    *table("fp8 experts", quantized_cases.check_fp8_moe, ALL, *CROWDED, dead=0.1),
    *table("fp8 experts in mini's shape", quantized_cases.check_fp8_moe, HALF, *(
        (rows, 2048, 512, 257, 9, True, False) for rows in (32, 256, 1024, 2048, 8192))),
    *table("grouped gemms", check_grouped_gemms, (torch.bfloat16, torch.float16), *(
        (config, *case, kind) for config in CONFIGS for case in ROUTED for kind in ("silu", "gelu_tanh"))),
    *table("fp8 experts of awkward sizes", quantized_cases.check_fp8_moe, ALL, *(
        (130, *shape, False, False) for shape in (*AWKWARD, (256, 96, 8, 2))), activation="gelu_tanh"),
    *(row for kind in quantized_cases.KINDS for row in (
        *table("linear", quantized_cases.check_group_quantized_linear, HALF, *(
            (rows, *shape, kind) for rows in (1, 32, 150, 2048) for shape in (MINI, WIDE))),
        *table("dequantize", quantized_cases.check_dequantize, ALL, (3072, 2048, kind), (35, 200, kind)),
        *table("linear of awkward sizes", quantized_cases.check_group_quantized_linear, ALL, (33, 100, 36, True, kind),
               (600, 80, 24, True, kind), (3, 20, 7, True, kind)),
        *table("experts", quantized_cases.check_group_quantized_moe, HALF, *(
            (*case, kind) for case in CROWDED), dead=0.1),
        *table("experts of awkward sizes", quantized_cases.check_group_quantized_moe, ALL, *(
            (130, *shape, False, False, kind) for shape in AWKWARD), activation="gelu_tanh"))),
    *table("experts in mini's shape", quantized_cases.check_group_quantized_moe, HALF, *(
        (rows, 2048, 512, 256, 8, True, False, kind) for rows in (32, 1024)
        for kind in ("int8", "int4", "nvfp4", "int4 asymmetric", "nf4"))),
    *table("each nvfp4 product", quantized_cases.check_every_nvfp4_product, ALL, ()),
    *table("experts in the shape of DiffusionGemma", quantized_cases.check_group_quantized_moe, HALF, *(
        (rows, 2816, 704, 128, 8, False, crowded, "nvfp4") for rows in (1, 256, 2048) for crowded in (False, True)),
        activation="gelu_tanh"),
    *table("linear", quantized_cases.check_group_quantized_linear, HALF, *(
        (rows, *MINI, kind) for rows in (1, 150, 2048) for kind in ("int4 asymmetric", "int8 asymmetric"))),
    *table("activation order", quantized_cases.check_column_order, ALL, (1, 2048, 3072), (600, 200, 36)),
]  # fmt: skip


@pytest.mark.parametrize(("check", "arguments", "own"), KERNELS)
def test_kernel(check, arguments, own):
    check(*arguments, "cuda", **own)


@pytest.mark.parametrize("format", ["fp8", "int8", "int4", "nvfp4"])
def test_loading_holds_little_more_than_the_result(format):
    """Experts of 805 MB in bfloat16, which a checkpoint holds as one tensor."""
    values = torch.randn(256, 1024, 1536, dtype=torch.bfloat16)
    weight = get_format(format).make(values.shape, torch.bfloat16, torch.device("cuda"), TRITON, True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    weight.load((), values)
    assert torch.cuda.max_memory_allocated() - before < 0.2 * values.nbytes


def test_the_fp8_head_finds_the_argmax_of_a_million_rows():
    quantized_cases.check_fp8_argmax_of_many_rows(1_000_000, 2048, 157_184, "cuda")

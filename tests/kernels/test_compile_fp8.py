"""The kernels of eight bits compile for Hopper in the shapes of LLaDA2.0-mini, as in `test_compile.py`."""

import pytest

pytest.importorskip("triton")

from runtime.kernels import activation, layernorm, quantized_linear, quantized_tensor
from runtime.kernels.fused_moe import fused_moe, tile_config
from tests.kernels.test_compile import boxed, build, spilled

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("pairs_per_expert", [1, 8, 64, 1000])
def test_moe_products_of_eight_bits(pairs_per_expert, described):
    height, gate_up, down = tile_config.fp8_config(256 * pairs_per_expert, 256, 2048, 512)
    types = {"order_ptr": "*i32", "tiles_ptr": "*i32", "max_tiles": "i32", "scales_ptr": "*fp32"}
    for how, kernel in ((gate_up, fused_moe._gate_up), (down, fused_moe._down)):
        low, middle, high = how.stages
        constants = {
            "HIDDEN": 2048, "WIDTH": 512, "HEIGHT": height, "COLUMNS": how.columns, "DEPTH": how.depth,
            "LOW": low, "MIDDLE": middle, "HIGH": high, "TMA": described, "SWAP_AB": how.swap_ab, "FORMAT": "fp8",
            "GROUP": 0, "TAIL": 0,
        }  # fmt: skip
        first = kernel is fused_moe._gate_up
        weights = boxed((2 if first else 1) * how.columns, how.depth, "fp8e4nv") if described else "*fp8e4nv"
        if first:
            constants |= {"TOP_K": 8, "INTERLEAVE": 8, "GELU": False}
            own = {"x_ptr": "*fp8e4nv", "x_scales_ptr": "*fp32", "weights": weights, "hidden_ptr": "*bf16"}
        else:
            constants |= dict.fromkeys(("middle", "hidden", "tail")) | {"HIDDEN_TMA": False}
            own = {"hidden_ptr": "*fp8e4nv", "hidden_scales_ptr": "*fp32", "weights": weights, "pairs_ptr": "*bf16"}
        compiled = build(kernel, types | own, constants, num_warps=how.warps)
        assert spilled(compiled) == 0
        assert ".f32.e4m3.e4m3" in compiled.asm["ptx"], "the products do not reach Hopper's matrix units"
        assert "wgmma" in compiled.asm["ptx"]
        assert ("cp.async.bulk.tensor" in compiled.asm["ptx"]) == described


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("rows", [1, 32, 256, 8192])
def test_linear_of_eight_bits(rows, described):
    tall, columns, depth, stages, warps = quantized_linear.fp8_tile_sizes(rows, 2048)
    types = {"x_ptr": "*fp8e4nv", "x_scales_ptr": "*fp32", "scales_ptr": "*fp32", "bias_ptr": "*bf16"}
    types |= {"out_ptr": "*bf16", "rows": "i32"}
    types["weights"] = boxed(columns, depth, "fp8e4nv") if described else "*fp8e4nv"
    constants = {
        "INPUTS": 2048, "OUTPUTS": 3072, "ROWS": tall, "COLUMNS": columns, "DEPTH": depth, "STAGES": stages,
        "BIASED": True, "TMA": described,
    }  # fmt: skip
    compiled = build(quantized_linear._fp8_linear, types, constants, num_warps=warps)
    assert spilled(compiled) == 0
    assert "wgmma" in compiled.asm["ptx"]


def test_rounding_to_eight_bits():
    limits = {"FP8_MAX": quantized_tensor.FP8_MAX, "MIN_SCALE": quantized_tensor.MIN_SCALE}
    made = {"values_ptr": "*fp8e4nv", "scales_ptr": "*fp32"}
    shape = limits | {"SIZE": 512, "SIZE_P2": 512, "ROWS": 4}
    assert spilled(build(quantized_tensor._quantize, made | {"x_ptr": "*bf16", "rows": "i32"}, shape, num_warps=4)) == 0
    types = made | dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr", "sum_ptr"), "*bf16")
    shape = limits | {"SIZE": 4096, "SIZE_P2": 4096, "ADD": True, "WEIGHTED": True}
    assert spilled(build(layernorm._rms_norm_quant, types | {"eps": "fp32"}, shape, num_warps=8)) == 0
    types = made | {"gate_up_ptr": "*bf16", "out_ptr": "*bf16"}
    shape = limits | {"WIDTH": 14336, "WIDTH_P2": 16384, "GELU": False}
    assert spilled(build(activation._act_and_mul_quant, types, shape, num_warps=16)) == 0

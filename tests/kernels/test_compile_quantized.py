"""Compiles the kernels of quantized weights for Hopper in the shapes of LLaDA2.0-mini, like `test_compile.py`."""

import re

import pytest
import torch

pytest.importorskip("triton")
import triton.language as tl
from triton.experimental.gluon import language as gl

from runtime.kernels import activation, fp8_argmax, layernorm, linear, nvfp4, nvfp4_gemm, quantized_tensor
from runtime.kernels.fused_moe import grouped_gemm, tile_config
from runtime.kernels.quantized_tensor import empty_group_quantized
from tests.kernels.test_compile import boxed, build, build_gemm, check_gemm, spilled, typed

pytestmark = pytest.mark.matrix
UNIT = re.compile(r"(wgmma)\.mma_async\S*?(k\d+)|(mma\.sync)\S*?(k\d+)")
KINDS = {  # dtype of the stored codes, group size, Triton's name of the dtype, and further arguments
    "int8": (torch.int8, None, "i8", {}),
    "int4": (torch.uint8, 128, "u8", {}),
    "blocks": (torch.float8_e4m3fn, 128, "fp8e4nv", {}),
    "int4 asymmetric": (torch.uint8, 128, "u8", {"asymmetric": True}),
    "int8 asymmetric": (torch.int8, 64, "i8", {"asymmetric": True}),
    "nf4": (torch.uint8, 64, "u8", {"is_nf4": True}),
}


def held(shape, kind):
    if kind == "nvfp4":
        return nvfp4.empty_nvfp4(shape, torch.device("meta")), "i16"
    stored, group, name, more = KINDS[kind]
    return empty_group_quantized(shape, stored, group or shape[-1], torch.device("meta"), **more), name


def decode_of(weight, name):
    """Returns the type of the argument `decode_ptr`, None without one."""
    if isinstance(weight, nvfp4.Nvfp4) or (weight.zeros is None and not weight.is_nf4):
        return None
    return "*bf16" if weight.is_nf4 else f"*{name}"


def constants_of(weight, depth):
    four = weight.values.dtype == torch.uint8
    return {"GROUP": linear.group_size(weight), "INT4": four, "DEPTH": depth}, depth // 2 if four else depth


def compile_gemms(kind, pairs, experts, hidden, width, described):
    """Compiles the gate-up and the down GEMM of fused MoE."""
    (gate_up, name), (down, _) = held((experts, 2 * width, hidden), kind), held((experts, hidden, width), kind)
    height, *both = tile_config.group_quantized_config(pairs, experts, 2, gate_up, down)
    for first, how, weight in zip((True, False), both, (gate_up, down), strict=True):
        if kind == "nvfp4":
            form, group, deep = kind, 0, how.depth // 4
        else:
            own, deep = constants_of(weight, how.depth)
            form, group = "int4" if own["INT4"] else "group", own["GROUP"]
        yield build_gemm(
            first, how, height, hidden, width, described, form=form, kind=name, group=group, stored_depth=deep,
            decode=decode_of(weight, name),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "pairs_per_expert", "described"),
    [("int4", 1, True), ("int4", 8, True), ("int4", 64, True), ("int4", 8, False), ("int8", 8, True),
     ("blocks", 64, True), ("nvfp4", 1, True), ("nvfp4", 8, True), ("nvfp4", 64, True), ("nvfp4", 8, False),
     ("int4 asymmetric", 8, True), ("int4 asymmetric", 64, True), ("int8 asymmetric", 64, True),
     ("nf4", 8, True)],
)  # fmt: skip
def test_group_quantized_moe(kind, pairs_per_expert, described):
    for compiled in compile_gemms(kind, 256 * pairs_per_expert, 256, 2048, 512, described):
        check_gemm(compiled, described)


@pytest.mark.parametrize("kind", ["int8", "int4", "nvfp4", "int4 asymmetric"])
@pytest.mark.parametrize(("hidden", "width"), [(2048, 512), (64, 12)])
def test_all_tile_configs_sum_on_the_same_matrix_unit(kind, hidden, width):
    """The tile config depends on the number of pairs in batch-invariant mode too, so it must not change the sums."""
    units = [
        [
            set(UNIT.findall(compiled.asm["ptx"]))
            for compiled in compile_gemms(kind, 16 * each, 16, hidden, width, False)
        ]
        for each in (1, 8, 64)
    ]
    assert all(len(found) == 1 for both in units for found in both)
    assert units[0] == units[1] == units[2]


@pytest.mark.parametrize(
    ("kind", "rows", "described"),
    [
        ("int4", 1, True),
        ("int4", 200, True),
        ("int4 asymmetric", 1, True),
        ("nf4", 1, True),
        ("int8", 128, False),
        ("blocks", 128, True),
        *((kind, 1000, described) for kind in KINDS for described in (True, False)),  # batch-invariant
    ],
)
def test_group_quantized_linear(kind, rows, described):
    weight, name = held((3072, 2048), kind)
    tall, columns, depth, stages, warps = linear.group_quantized_tile_sizes(rows, weight, 2, batch_invariant=True)
    own, deep = constants_of(weight, depth)
    types = {"x_ptr": "*bf16", "scales_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16", "rows": "i32"}
    types["weights"] = boxed(columns, deep, name) if described else f"*{name}"
    constants = own | {
        "INPUTS": 2048, "OUTPUTS": 3072, "ROWS": tall, "COLUMNS": columns, "STAGES": stages, "BIASED": True,
        "TMA": described,
    }  # fmt: skip
    decode = decode_of(weight, name)
    (types if decode else constants)["decode_ptr"] = decode
    compiled = build(linear._group_quantized_linear, types, constants, num_warps=warps)
    check_gemm(compiled)


@pytest.mark.parametrize(("rows", "described"), [(1, True), (200, True), (1000, False)])
def test_nvfp4_linear(rows, described):
    tall, columns, _, stages, warps = nvfp4.nvfp4_tile_sizes(rows, 2, batch_invariant=True)
    types = {"x_ptr": "*bf16", "scales_ptr": "*i32", "bias_ptr": "*bf16", "out_ptr": "*bf16"}
    types |= {"rows": "i32", "scale_stride": "i32"}
    types["weights"] = boxed(columns, nvfp4.BLOCK // 4, "i16") if described else "*i16"
    constants = {
        "INPUTS": 2048, "OUTPUTS": 3072, "ROWS": tall, "COLUMNS": columns, "STAGES": stages, "BIASED": True,
        "TMA": described,
    }  # fmt: skip
    check_gemm(build(nvfp4._nvfp4_linear, types, constants, num_warps=warps))


def compile_nvfp4(tile, size, outputs, gated=None, data="bf16"):
    """Compiles a kernel for Hopper: of the experts, or with `gated` None that of linear layers."""
    block = [tile.columns, tile.depth // 8]
    types = typed(**{f"p{data}": "x_ptr out_ptr", "pi32": "scales_ptr"})
    types["codes_desc"] = f"tensordesc<i32{block},{gl.NVMMASharedLayout.get_default_for(block, gl.int32)!r}>"
    constants = {
        "SIZE": size, "OUTPUTS": outputs, "COLUMNS": tile.columns, "ROWS": tile.rows, "DEPTH": tile.depth,
        "STAGES": tile.stages,
    }  # fmt: skip
    if gated is None:
        types |= typed(i32="rows scale_stride", **{f"p{data}": "bias_ptr"})
        return build(nvfp4_gemm._linear, types, constants, num_warps=tile.warps)
    types |= typed(pi32="order_ptr tiles_ptr", i32="max_tiles")
    constants |= {"TOP_K": 8, "INTERLEAVE": activation.interleave_group(outputs // 2) if gated else 0, "GELU": False}
    return build(nvfp4_gemm._experts, types, constants, num_warps=tile.warps)


@pytest.mark.parametrize("gated", [None, True, False])
@pytest.mark.parametrize(
    ("rows", "size", "outputs", "data"),
    [(16, 2048, 1024, "bf16"), (32, 2816, 1408, "bf16"), (32, 704, 2816, "fp16"), (64, 512, 2048, "bf16"),
     (128, 2048, 1024, "bf16"), (128, 128, 64, "bf16")],
)  # fmt: skip
def test_nvfp4_on_hopper(rows, size, outputs, data, gated):
    select = nvfp4_gemm.select_linear_tile if gated is None else nvfp4_gemm.select_tile
    check_gemm(compile_nvfp4(select(rows, size, outputs), size, outputs, gated, data), True)


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("pairs_per_expert", [1, 8, 64, 1000])
def test_fp8_moe(pairs_per_expert, described):
    height, *both = tile_config.fp8_config(256 * pairs_per_expert, 256, 2048, 512)
    for first, how in zip((True, False), both, strict=True):
        compiled = build_gemm(first, how, height, 2048, 512, described, form="fp8", kind="fp8e4nv")
        check_gemm(compiled, described)
        assert ".f32.e4m3.e4m3" in compiled.asm["ptx"]


def build_grouped(tile, height, hidden, width, **own):
    """Compiles a grouped GEMM; that of gate_up if `own` has its constants."""
    boxes = {
        name: f"tensordesc<fp8e4nv{block},{gl.NVMMASharedLayout.get_default_for(block, gl.float8e4nv)!r}>"
        for name, block in (("w_desc", [tile.rows, tile.depth]), ("h_desc", [tile.pairs, tile.depth]))
    }
    types = boxes | typed(
        pfp32="w_scales_ptr h_scales_ptr x_scales_ptr out_scales_ptr", pi32="order_ptr tiles_ptr list_ptr counter_ptr",
        pbf16="pairs_ptr", pfp8e4nv="x_ptr out_ptr", i32="max_tiles scale_stride",
    )  # fmt: skip
    constants = own | {
        "HIDDEN": hidden, "WIDTH": width, "TILES_P2": 512, "PAIRS": tile.pairs, "DEPTH": tile.depth,
        "STAGES": tile.stages, "ITEMS_AHEAD": grouped_gemm.ITEMS_AHEAD, "LOAD_REGISTERS": tile.load_registers,
    }  # fmt: skip
    kernel = grouped_gemm._grouped_gate_up if own else grouped_gemm._grouped_down
    constants |= {"ROWS": tile.rows} if own else {"COLUMNS": tile.rows, "SPLITS": height // tile.pairs}
    types = {name: kind for name, kind in types.items() if name in kernel.arg_names}
    most = grouped_gemm.max_registers(tile.warps + grouped_gemm.LOAD_WARPS, tile.programs)
    return build(kernel, types, constants, num_warps=tile.warps, maxnreg=most)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("shape", tile_config.GROUPED)
def test_grouped_fp8_moe(shape, gelu):
    hidden, width = (int(size) for size in re.findall(r"(\d+) to (\d+)", shape)[0])
    constants = {
        "TOP_K": 9, "GELU": gelu, "INTERLEAVE": activation.INTERLEAVE, "FP8_MAX": quantized_tensor.FP8_MAX,
        "MIN_SCALE": quantized_tensor.MIN_SCALE, "LOAD_WARPS": grouped_gemm.LOAD_WARPS,
    }  # fmt: skip
    for gate_up, down in {config for _, config in tile_config.GROUPED[shape] if config}:
        assert 2 * width % gate_up.rows == hidden % gate_up.depth == hidden % down.rows == width % down.depth == 0
        assert gate_up.rows // 2 == down.depth, "down multiplies a group of inputs per step"
        assert gate_up.pairs % down.pairs == 0
        for tile, own in ((gate_up, constants), (down, {})):
            compiled = build_grouped(tile, gate_up.pairs, hidden, width, **own)
            check_gemm(compiled, True)
            assert ".f32.e4m3.e4m3" in compiled.asm["ptx"]
            assert (compiled.metadata.shared + 1024) * tile.programs <= 228 * 1024, "programs do not share an SM"


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("rows", [1, 32, 256, 8192])
def test_fp8_linear(rows, described):
    tall, columns, depth, stages, warps = linear.fp8_tile_sizes(rows, 2048)
    types = {"x_ptr": "*fp8e4nv", "x_scales_ptr": "*fp32", "scales_ptr": "*fp32", "bias_ptr": "*bf16"}
    types |= {"out_ptr": "*bf16", "rows": "i32"}
    types["weights"] = boxed(columns, depth, "fp8e4nv") if described else "*fp8e4nv"
    constants = {
        "INPUTS": 2048, "OUTPUTS": 3072, "ROWS": tall, "COLUMNS": columns, "DEPTH": depth, "STAGES": stages,
        "BIASED": True, "TMA": described,
    }  # fmt: skip
    compiled = build(linear._fp8_linear, types, constants, num_warps=warps)
    check_gemm(compiled)


@pytest.mark.parametrize("rows", [1, 64, 2048])
def test_fp8_head(rows):
    config = fp8_argmax.select_config(rows, 2048)
    numbers = dict.fromkeys(("rows", "vocab", "mask_id", "max_id", "allowed_id_a", "allowed_id_b"), "i32")
    types = numbers | {"hidden": boxed(config.rows, config.depth, "fp8e4nv"), "num_valid_ptr": "*i32"}
    types |= {"weights": boxed(config.tokens, config.depth, "fp8e4nv")}
    types |= dict.fromkeys(("hidden_scales_ptr", "scales_ptr", "found_ptr"), "*fp32")
    same = {"HIDDEN_SIZE": 2048, "TOKENS": config.tokens, "FIELDS": fp8_argmax.FIELDS, "HAS_NUM_VALID": True}
    constants = {"ROWS": config.rows, "DEPTH": config.depth, "STAGES": config.stages, "TMA": True}
    check_gemm(build(fp8_argmax._two_largest, types, same | constants, num_warps=config.warps), True)
    types = {"hidden_ptr": "*bf16", "weight_ptr": "*bf16", "num_valid_ptr": "*i32", "token_ptr": "*i64", "rows": "i32"}
    types |= dict.fromkeys(("found_ptr", "conf_ptr", "logit_ptr"), "*fp32") | {"pieces": "i32"}
    constants = {"HIDDEN_P2": 2048, "PIECES": 2048, "CANDIDATES": fp8_argmax.CANDIDATES}
    assert spilled(build(fp8_argmax._decide, types, same | constants, num_warps=8)) == 0


def test_fp8_quantize():
    limits = {"FP8_MAX": quantized_tensor.FP8_MAX, "MIN_SCALE": quantized_tensor.MIN_SCALE}
    made = {"values_ptr": "*fp8e4nv", "scales_ptr": "*fp32"}
    shape = limits | {"SIZE": 512, "SIZE_P2": 512, "ROWS": 4}
    assert spilled(build(quantized_tensor._quantize, made | {"x_ptr": "*bf16", "rows": "i32"}, shape, num_warps=4)) == 0
    numbers = ("row_stride", "size", "first_row", "first", "width", "group")
    types = made | {"x_ptr": "*bf16", "overflow_ptr": "*fp32"} | dict.fromkeys(numbers, "i32")
    shape = limits | {"INVERSE": quantized_tensor.INVERSE_FP8_MAX, "DTYPE": tl.bfloat16, "COLUMNS": 1024}
    compiled = build(quantized_tensor._quantize_fp8_weight, types, shape, num_warps=4)
    assert spilled(compiled) == 0
    assert "div.rn.f32" in compiled.asm["ptx"]  # exact division, for the bits of the reference
    types = made | dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr", "sum_ptr"), "*bf16")
    shape = limits | {"SIZE": 4096, "SIZE_P2": 4096, "ADD": True, "WEIGHTED": True}
    assert spilled(build(layernorm._rms_norm_quant, types | {"eps": "fp32"}, shape, num_warps=8)) == 0
    types = made | {"gate_up_ptr": "*bf16", "out_ptr": "*bf16"}
    shape = limits | {"WIDTH": 14336, "WIDTH_P2": 16384, "GELU": False}
    assert spilled(build(activation._act_and_mul_quant, types, shape, num_warps=16)) == 0

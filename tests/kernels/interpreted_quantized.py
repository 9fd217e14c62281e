"""Tests of the kernels of quantized weights in Triton's interpreter, on the CPU; collected like interpreted.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from runtime.kernels import common
from runtime.kernels.ops import BATCH_INVARIANT_TRITON, TORCH, TRITON
from runtime.layers.attention import TritonAttention
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import resolve_family
from runtime.parameters.weight import InterleavedWeight, UnquantizedWeight
from runtime.quantization.checkpoint.scheme import quantization_of
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.loader import load_model
from tests.kernels import in_order, interpreting, quantized_cases  # noqa: F401
from tests.kernels.interpreted import DOTS, dtypes
from tests.kernels.tables import ALL, table
from tests.models.paged import logits_in_chunks
from tests.models.tiny import write_random
from tests.oracle.tiny import write_tiny
from tests.quantization.quantized_files import write_both

_convert = interpreter._convert_float


CONVERTED = {  # the interpreter rounds the first two wrongly or overflows, and misreads subnormal bfloat16 numbers
    (tl.float32, tl.float8e4nv): (torch.float32, torch.float8_e4m3fn),
    (tl.float32, tl.bfloat16): (torch.float32, torch.bfloat16),
    (tl.bfloat16, tl.float32): (torch.bfloat16, torch.float32),
}


def _convert_exactly(values, kind, target, rounding):
    if (kind, target) not in CONVERTED:
        return _convert(values, kind, target, rounding)
    source, result = CONVERTED[kind, target]
    made = torch.from_numpy(np.frombuffer(values.tobytes(), np.uint8).copy()).view(source).to(result)
    return made.view(torch.uint8).numpy().view(f"uint{8 * result.itemsize}").reshape(values.shape)


interpreter._convert_float = _convert_exactly


FP8 = [
    *table("quantize", quantized_cases.check_quantize_fp8, ALL, (1, 16), (5, 100), (9, 32), (1100, 8)),
    *table("not finite", quantized_cases.check_fp8_weight_that_is_not_finite, ALL, (5, 1030), (2, 1)),
    *table("overflow", quantized_cases.check_fp8_weight_overflow, ALL, ()),
    *table("attached", quantized_cases.check_attached_fp8, ALL, (1, 16, "silu"), (5, 100, "gelu_tanh")),
    *table("head", quantized_cases.check_fp8_argmax, DOTS[1:], (1, 512, 300, (), None), (70, 512, 500, (499,), 9)),
    *table("linear", quantized_cases.check_fp8_linear, DOTS, (33, 100, 36, True)),
    *table("moe", quantized_cases.check_fp8_moe, DOTS, (70, 40, 24, 3, 2, True, False)),
    *table("gelu", quantized_cases.check_fp8_moe, DOTS[:1], (20, 32, 24, 4, 2, False, False), activation="gelu_tanh"),
]  # fmt: skip
GROUPS = [
    *table("dequantize", quantized_cases.check_dequantize, DOTS[:1], *(
        (35, 200, kind) for kind in quantized_cases.KINDS)),
    *table("linear", quantized_cases.check_group_quantized_linear, DOTS[1:], *(
        (33, 200, 36, True, kind) for kind in quantized_cases.KINDS)),
    *table("activation order", quantized_cases.check_column_order, DOTS[:1], (5, 80, 36)),
    *table("moe", quantized_cases.check_group_quantized_moe, DOTS[1:], *(
        (70, 40, 24, 3, 2, True, False, kind) for kind in quantized_cases.KINDS)),
    *table("each nvfp4 product", quantized_cases.check_every_nvfp4_product, DOTS, ()),
    *table("gelu", quantized_cases.check_group_quantized_moe, DOTS[:1], (20, 32, 24, 4, 2, False, False, "int4"),
           activation="gelu_tanh"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "arguments", "own"), FP8)
def test_fp8(check, arguments, own):
    check(*arguments, "cpu", **own)


@pytest.mark.parametrize(("check", "arguments", "own"), GROUPS)
def test_groups(check, arguments, own):
    check(*arguments, "cpu", **own)


@dtypes
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(8, 64), (24, 1030), (3, 100), (1, 1), (4, 2048)])
def test_fp8_weight(rows, size, dtype, interleaved):
    quantized_cases.check_fp8_weight(rows, size, dtype, "cpu", interleaved)


@pytest.fixture(params=[False, True], ids=["loads", "boxes"])
def described(request, monkeypatch):
    """Runs a test with TMA loads and without."""
    on = request.param
    monkeypatch.setattr(common, "supports_tma", lambda matrix: on and matrix.stride(0) % 16 == 0)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 16, 8), (20, 48, 100), (70, 160, 70), (520, 32, 130)])
def test_fp8_linear(rows, inputs, outputs, described):
    quantized_cases.check_fp8_linear(rows, inputs, outputs, rows < 50, torch.float32, "cpu")


@pytest.mark.parametrize(
    ("rows", "hidden", "width", "experts", "top_k"),
    [(1, 16, 16, 4, 2), (5, 48, 12, 12, 1), (70, 40, 24, 3, 2), (300, 32, 16, 3, 1), (130, 24, 40, 1, 1)],
)
def test_fp8_moe(rows, hidden, width, experts, top_k, described):
    shared, crowded = rows != 70, rows == 70
    quantized_cases.check_fp8_moe(rows, hidden, width, experts, top_k, shared, crowded, torch.float32, "cpu", dead=0.1)


@pytest.mark.parametrize(
    ("kind", "rows", "inputs", "outputs"),
    [
        ("int4", 1, 16, 8), ("int4_32", 20, 80, 100), ("int8", 70, 160, 70), ("blocks", 20, 200, 130),
        ("int4", 70, 256, 36), ("nvfp4", 1, 16, 8), ("nvfp4", 20, 80, 100), ("nvfp4", 70, 256, 36),
        ("int4 asymmetric", 20, 200, 70), ("int8 asymmetric", 20, 80, 36), ("int8_64 asymmetric", 20, 200, 36),
        ("nf4", 20, 200, 70),
    ],
)  # fmt: skip
def test_linear(kind, rows, inputs, outputs, described):
    quantized_cases.check_group_quantized_linear(rows, inputs, outputs, rows < 50, kind, torch.float32, "cpu")


@pytest.mark.parametrize(
    ("kind", "rows", "hidden", "width", "experts", "top_k"),
    [
        ("int4", 5, 48, 12, 12, 1), ("int8", 70, 40, 24, 3, 2), ("blocks", 20, 144, 40, 2, 1),
        ("int4", 40, 144, 24, 1, 1), ("nvfp4", 5, 48, 12, 12, 1), ("nvfp4", 70, 144, 40, 3, 2),
        ("int4_64 asymmetric", 20, 144, 24, 3, 2), ("nf4", 20, 144, 24, 3, 2),
    ],
)  # fmt: skip
def test_moe(kind, rows, hidden, width, experts, top_k, described):
    shared, crowded = rows != 70, rows == 70
    quantized_cases.check_group_quantized_moe(
        rows, hidden, width, experts, top_k, shared, crowded, kind, torch.float32, "cpu", dead=0.1
    )


@pytest.mark.parametrize("kind", quantized_cases.KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
def test_linear_is_batch_invariant(monkeypatch, kind, dtype):
    in_order.patch(monkeypatch)
    rows = 600 if dtype == torch.float16 else 150
    in_order.check_alike(quantized_cases.batch_invariant_linear(rows, 200, 70, kind, dtype, "cpu"), rows, 1)


SLOW = pytest.param("int4_32", 70, 12, marks=pytest.mark.slow), pytest.param("blocks", 256, 3, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kind", "rows", "experts"), [("int8", 256, 3), ("int4", 256, 3), ("int4", 20, 10), ("nvfp4", 256, 3), *SLOW]
)
def test_moe_is_batch_invariant(monkeypatch, kind, rows, experts):
    in_order.patch(monkeypatch)
    in_order.check_alike(
        quantized_cases.batch_invariant_moe(rows, 136, 24, experts, 2, kind, torch.float16, "cpu"), rows, 2
    )


@pytest.mark.parametrize(
    ("family", "layout"),
    [("llada2", "AWQ"), ("llada2", "bitsandbytes NF4"), ("dream", "GPTQ, activation order, zero points")],
)
@pytest.mark.parametrize("kernels", [TRITON, BATCH_INVARIANT_TRITON], ids=["fast", "deterministic"])
def test_full_model_of_a_quantized_file(tmp_path, family, layout, kernels):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
    if family == "llada2":
        write_tiny(tmp_path / "plain", seed=4, head_dim=16, moe_intermediate_size=64, **sizes)
    else:
        write_random(family, tmp_path / "plain", **sizes)
    quantized, plain = write_both(layout, tmp_path / "plain", tmp_path)
    results = [logits_of(plain, TORCH), logits_of(quantized, kernels)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def logits_of(path, kernels):
    checkpoint = resolve_checkpoint(str(path))
    family = resolve_family(None, checkpoint.config)
    build = LayerFactory.create("cpu", torch.float32, quantization=quantization_of(checkpoint.config, None))
    model = load_model(checkpoint, family, family.parse(checkpoint.config), replace(build, kernels=kernels))
    if kernels is not TORCH:
        model.attention = TritonAttention(model.attention.shape, grouped=True, batch_invariant=kernels.batch_invariant)
    ids = [[5, 6, 7, 8, 31, 31, 31, 31, 9, 9], [3, 1, 4, 1]]
    return torch.cat(logits_in_chunks(model, ids, block_size=4, page_size=4, chunk_blocks=[2, 1]))


@pytest.mark.parametrize("part", ["", ".experts.", "mlp"])
def test_full_model_with_unquantized_parts(tmp_path, part):
    """Weights that a checkpoint leaves unquantized have the layout of an unquantized model: gate and up rows of the
    first layer's MLP are interleaved. The shared expert is fused with the others if their format is the same.
    """
    sizes = {"head_dim": 16, "hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 48}
    write_tiny(tmp_path / "plain", seed=4, num_hidden_layers=3, **sizes)
    path, plain = write_both("nvfp4, modelopt", tmp_path / "plain", tmp_path, lambda name: part not in name)
    results = []
    for directory, kernels in ((plain, TORCH), (path, TRITON)):
        checkpoint, family = resolve_checkpoint(str(directory)), resolve_family("llada2", {})
        build = LayerFactory.create("cpu", torch.float32, quantization=quantization_of(checkpoint.config, None))
        model = load_model(checkpoint, family, family.parse(checkpoint.config), replace(build, kernels=kernels))
        if kernels is TRITON:
            model.attention = TritonAttention(model.attention.shape, grouped=True, batch_invariant=False)
            assert isinstance(model.layers[0].mlp.gate_up_proj.weight, InterleavedWeight) == (part == ".experts.")
            assert isinstance(model.layers[0].self_attn.qkv_proj.weight, UnquantizedWeight) == (part != "")
            assert (model.layers[2].mlp.fused_shared is not None) == (part != ".experts.")
        ids = [[5, 6, 7, 8, 31, 31, 31, 31, 9, 9], [3, 1, 4, 1]]
        results.append(torch.cat(logits_in_chunks(model, ids, block_size=4, page_size=4, chunk_blocks=[2, 1])))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("quantization", "shared"),
    [("fp8", 1), ("fp8", 2), ("int4", 1), ("int8", 2), ("nvfp4", 1)],
    ids=["fp8_an_expert_more", "fp8_pair_stride", "int4_an_expert_more", "int8_pair_stride", "nvfp4_an_expert_more"],
)
def test_full_model(tmp_path, shared, quantization):
    """Checks that a tiny model has the same logits with Triton and torch kernels, up to the fp8 rounding of rows."""
    write_tiny(tmp_path, seed=4, num_hidden_layers=3, head_dim=16, hidden_size=64, num_shared_experts=shared)
    checkpoint, family = resolve_checkpoint(str(tmp_path)), resolve_family("llada2", {})
    arch, build = family.parse(checkpoint.config), LayerFactory.create("cpu", torch.float32, quantization=quantization)
    results = []
    for kernels in (TORCH, TRITON):
        model = load_model(checkpoint, family, arch, replace(build, kernels=kernels.for_quantization(quantization)))
        if kernels is TRITON:
            model.attention = TritonAttention(model.attention.shape, grouped=True, batch_invariant=False)
            assert (model.layers[2].mlp.fused_shared is not None) == (shared == 1)
        ids = [[5, 6, 7, 8, 31, 31, 31, 31, 9, 9], [3, 1, 4, 1]]
        results.append(torch.cat(logits_in_chunks(model, ids, block_size=4, page_size=4, chunk_blocks=[2, 1])))
    if quantization == "fp8":
        error = (results[1] - results[0]).norm(dim=1) / results[0].norm(dim=1)
        assert 0.005 < float(error.median()) < 0.12
    else:
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)

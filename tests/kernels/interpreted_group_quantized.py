"""The kernels of weights of few bits through Triton's interpreter, as `interpreted.py`, and collected as it is."""

from dataclasses import replace

import pytest
import torch

from runtime.kernels import common
from runtime.kernels.ops import TORCH, TRITON
from runtime.layers.attention import TritonAttention
from runtime.layers.layer_factory import LayerFactory
from runtime.models import resolve_family
from runtime.models.decoder import Decoder
from runtime.weights import resolve_checkpoint
from runtime.weights.loader import load_weights
from tests.kernels import group_quantized_cases, in_order, interpreting  # noqa: F401
from tests.models.paged import logits_in_chunks
from tests.oracle.tiny import write_tiny

kinds = pytest.mark.parametrize("kind", group_quantized_cases.KINDS)


@pytest.fixture(params=[False, True], ids=["loads", "boxes"])
def described(request, monkeypatch):
    """With the copy engine's boxes and without."""
    on = request.param
    monkeypatch.setattr(common, "supports_tma", lambda matrix: on and matrix.stride(0) % 16 == 0)


@pytest.mark.parametrize(
    ("kind", "rows", "inputs", "outputs"),
    [
        ("int4", 1, 16, 8),
        ("int4_32", 20, 80, 100),
        ("int8", 70, 160, 70),
        ("blocks", 20, 200, 130),
        ("int4", 70, 256, 36),
    ],
)
def test_linear(kind, rows, inputs, outputs, described):
    group_quantized_cases.check_linear(rows, inputs, outputs, rows < 50, kind, torch.float32, "cpu")


@kinds
def test_made_whole(kind):
    group_quantized_cases.check_whole(35, 200, kind, torch.float32, "cpu")


@kinds
def test_linear_of_half_precision(kind):
    group_quantized_cases.check_linear(33, 200, 36, True, kind, torch.float16, "cpu")


@pytest.mark.parametrize(
    ("kind", "rows", "hidden", "width", "experts", "top_k"),
    [
        ("int4", 5, 48, 12, 12, 1),
        ("int8", 70, 40, 24, 3, 2),
        ("blocks", 20, 144, 40, 2, 1),
        ("int4", 40, 144, 24, 1, 1),
    ],
)
def test_moe(kind, rows, hidden, width, experts, top_k, described):
    """Few pairs an expert, some, many."""
    shared, crowded = rows != 70, rows == 70
    group_quantized_cases.check_moe(
        rows, hidden, width, experts, top_k, shared, crowded, kind, torch.float32, "cpu", dead=0.1
    )


@kinds
def test_moe_of_half_precision(kind):
    group_quantized_cases.check_moe(70, 40, 24, 3, 2, True, False, kind, torch.float16, "cpu")


HALF_AND_FULL = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])


@kinds
@HALF_AND_FULL
def test_linear_alike_beside_any_rows(monkeypatch, kind, dtype):
    in_order.patch(monkeypatch)
    rows = 600 if dtype == torch.float16 else 150
    in_order.check_alike(group_quantized_cases.fixed_linear(rows, 200, 70, kind, dtype, "cpu"), rows, 1)


SLOW = pytest.param("int4_32", 70, 12, marks=pytest.mark.slow), pytest.param("blocks", 256, 3, marks=pytest.mark.slow)


@pytest.mark.parametrize(("kind", "rows", "experts"), [("int8", 256, 3), ("int4", 256, 3), ("int4", 20, 10), *SLOW])
def test_moe_alike_beside_any_rows(monkeypatch, kind, rows, experts):
    """From one block of four rows to 64: few pairs an expert, and many."""
    in_order.patch(monkeypatch)
    in_order.check_alike(
        group_quantized_cases.fixed_moe(rows, 136, 24, experts, 2, kind, torch.float16, "cpu"), rows, 2
    )


def test_moe_gelu():
    group_quantized_cases.check_moe(20, 32, 24, 4, 2, False, False, "int4", torch.float32, "cpu", "gelu_tanh")


@pytest.mark.parametrize(("quantization", "shared"), [("int4", 1), ("int8", 2)], ids=["an_expert_more", "pair_stride"])
def test_whole_model(tmp_path, shared, quantization):
    """Every kernel in its place: a tiny model as with the torch ones; its shared expert among the others, or wider than
    they are."""
    write_tiny(tmp_path, seed=4, num_hidden_layers=3, head_dim=16, hidden_size=64, num_shared_experts=shared)
    checkpoint, family = resolve_checkpoint(str(tmp_path)), resolve_family("llada2", {})
    arch, build = family.parse(checkpoint.config), LayerFactory.create("cpu", torch.float32, quantization=quantization)
    results = []
    for kernels in (TORCH, TRITON):
        model = Decoder(arch, replace(build, kernels=kernels.for_quantization(quantization)))
        if kernels is TRITON:
            model.attention = TritonAttention(model.attention.shape, grouped=True, batch_invariant=False)
            assert (model.layers[2].mlp.fused_shared is not None) == (shared == 1)
        load_weights(model, checkpoint, family.weights(arch))
        ids = [[5, 6, 7, 8, 31, 31, 31, 31, 9, 9], [3, 1, 4, 1]]
        results.append(torch.cat(logits_in_chunks(model, ids, block_size=4, page_size=4, chunk_blocks=[2, 1])))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)

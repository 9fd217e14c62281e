"""The kernels of eight bits through Triton's interpreter, as `interpreted.py`, and collected as it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from runtime.kernels import common
from runtime.kernels.ops import TORCH, TRITON
from runtime.layers.attention import TritonAttention
from runtime.layers.layer_factory import LayerFactory
from runtime.models import resolve_family
from runtime.models.decoder import Decoder
from runtime.weights import resolve_checkpoint
from runtime.weights.loader import load_weights
from tests.kernels import fp8_cases
from tests.kernels.interpreted import dtypes, matrix_dtypes  # it mends the interpreter's loop bounds
from tests.models.paged import logits_in_chunks
from tests.oracle.tiny import write_tiny

_convert = interpreter._convert_float


def _convert_exactly(given, kind, wanted, rounding):
    """The interpreter carries no rounded mantissa over into the exponent of e4m3."""
    if wanted == tl.float8e4nv and kind == tl.float32:
        made = torch.from_numpy(given.view(np.float32).copy()).to(torch.float8_e4m3fn)
        return made.view(torch.uint8).numpy().reshape(given.shape)
    return _convert(given, kind, wanted, rounding)


interpreter._convert_float = _convert_exactly


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (5, 100), (9, 32), (1100, 8)])
def test_quantise(rows, size, dtype):
    fp8_cases.check_quantise(rows, size, dtype, "cpu")


@dtypes
@pytest.mark.parametrize(("rows", "size", "activation"), [(1, 16, "silu"), (5, 100, "gelu_tanh")])
def test_made_beside(rows, size, activation, dtype):
    fp8_cases.check_made_beside(rows, size, activation, dtype, "cpu")


@pytest.fixture(params=[False, True], ids=["loads", "boxes"])
def described(request, monkeypatch):
    """With the copy engine's boxes and without."""
    on = request.param
    monkeypatch.setattr(common, "supports_tma", lambda matrix: on and matrix.stride(0) % 16 == 0)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 16, 8), (20, 48, 100), (70, 160, 70), (520, 32, 130)])
def test_linear(rows, inputs, outputs, described):
    fp8_cases.check_linear(rows, inputs, outputs, rows < 50, torch.float32, "cpu")


@matrix_dtypes
def test_linear_dtypes(dtype):
    fp8_cases.check_linear(33, 100, 36, True, dtype, "cpu")


@pytest.mark.parametrize(
    ("rows", "hidden", "width", "experts", "top_k"),
    [(1, 16, 16, 4, 2), (5, 48, 12, 12, 1), (70, 40, 24, 3, 2), (300, 32, 16, 3, 1), (130, 24, 40, 1, 1)],
)
def test_moe(rows, hidden, width, experts, top_k, described):
    """Few pairs an expert, some, many."""
    shared, crowded = rows != 70, rows == 70
    fp8_cases.check_moe(rows, hidden, width, experts, top_k, shared, crowded, torch.float32, "cpu", dead=0.1)


@matrix_dtypes
def test_moe_dtypes(dtype):
    fp8_cases.check_moe(70, 40, 24, 3, 2, True, False, dtype, "cpu")


def test_moe_gelu():
    fp8_cases.check_moe(20, 32, 24, 4, 2, False, False, torch.float32, "cpu", "gelu_tanh")


@pytest.mark.parametrize("shared", [1, 2], ids=["an_expert_more", "pair_stride"])
def test_whole_model(tmp_path, shared):
    """Every kernel in its place: a tiny model as with the torch ones, which leave rows as they are, but for what
    rounding these costs; its shared expert among the others, or wider than they are."""
    write_tiny(tmp_path, seed=4, num_hidden_layers=3, head_dim=16, hidden_size=64, num_shared_experts=shared)
    checkpoint, family = resolve_checkpoint(str(tmp_path)), resolve_family("llada2", {})
    arch, build = family.parse(checkpoint.config), LayerFactory.create("cpu", torch.float32, quantization="fp8")
    results = []
    for kernels in (TORCH, TRITON):
        model = Decoder(arch, replace(build, kernels=kernels.for_quantization("fp8")))
        if kernels is TRITON:
            model.attention = TritonAttention(model.attention.shape, grouped=True, batch_invariant=False)
            assert (model.layers[2].mlp.fused_shared is not None) == (shared == 1)
        load_weights(model, checkpoint, family.weights(arch))
        ids = [[5, 6, 7, 8, 31, 31, 31, 31, 9, 9], [3, 1, 4, 1]]
        results.append(torch.cat(logits_in_chunks(model, ids, block_size=4, page_size=4, chunk_blocks=[2, 1])))
    pair_stride = (results[1] - results[0]).norm(dim=1) / results[0].norm(dim=1)
    assert 0.005 < float(pair_stride.median()) < 0.12

"""Tests of the batch-invariant torch kernels: near the ordinary kernels, and the same bits for a row in any batch."""

from functools import partial

import pytest
import torch

from runtime.kernels import batch_invariant_torch
from runtime.kernels.moe_router import RoutingConfig
from runtime.kernels.ops import BATCH_INVARIANT_TORCH, TORCH
from runtime.kernels.quantized_tensor import quantize_fp8_reference
from runtime.layers.attention import AttentionShape, BatchInvariantAttention, TorchAttention
from runtime.layers.kv_pool import LayerKV
from tests.kernels.cases import attention_case, random, random_ids, with_any_sight

ROWS, SIZE, WIDTH, EXPERTS = 37, 23, 19, 6
make = partial(random, dtype=torch.float32, device="cpu")


def kernels(own, seed):
    """Returns the kernels of a set by name. Each takes rows and their index in the per-row inputs."""
    weight, bias, norm = make(WIDTH, SIZE, seed=seed), make(WIDTH, seed=seed + 1), make(SIZE, seed=seed + 2)
    gate_up = make(EXPERTS, 2 * WIDTH, SIZE, seed=seed + 3, scale=0.3)
    down = make(EXPERTS, SIZE, WIDTH, seed=seed + 4, scale=0.3)
    ids, weights = random_ids(ROWS, EXPERTS, 2, "cpu", dead=0.1), make(ROWS, 2, seed=seed + 5).sigmoid()
    rule, factor = RoutingConfig(2, 2, 1, True, 1.5), make(ROWS, seed=seed + 6)
    eight = quantize_fp8_reference(gate_up), quantize_fp8_reference(down)
    return {
        "linear": lambda x, at: own.linear(x, weight, bias),
        "norm": lambda x, at: own.rms_norm(x, norm, 1e-6),
        "add": lambda x, at: torch.cat(own.add_rms_norm(x, x.flip(1), norm, 1e-6), 1),
        "gate": lambda x, at: own.act_and_mul(x[:, :22]),
        "router": lambda x, at: own.router_logits(x, weight),
        "scaled router": lambda x, at: own.router_logits(x, weight, factor[at]),
        "route": lambda x, at: own.select_experts(x[:, :EXPERTS].contiguous(), None, rule)[1],
        "moe": lambda x, at: own.moe(x, ids[at], weights[at], gate_up, down, x),
        "fp8": lambda x, at: own.fp8_linear(x, quantize_fp8_reference(weight), bias),
        "fp8 moe": lambda x, at: own.moe(x, ids[at], weights[at], *eight, None),
    }


@pytest.mark.parametrize("name", list(kernels(TORCH, 0)))
def test_rows(name):
    x = make(ROWS, SIZE, seed=9)
    kernel = kernels(BATCH_INVARIANT_TORCH, 1)[name]
    full = kernel(x, slice(None))
    torch.testing.assert_close(full, kernels(TORCH, 1)[name](x, slice(None)), rtol=2e-5, atol=2e-5)
    for part in (slice(0, 1), slice(3, 20), slice(5, 37), slice(36, 37)):
        assert torch.equal(kernel(x[part], part), full[part]), part


def test_expert_pool_depends_on_its_block_only():
    rule = RoutingConfig(2, 1, 1, True, 1.0, capacity=3, block=4)
    logits, first = make(12, EXPERTS, seed=3), torch.arange(12) // 4 * 4
    full = batch_invariant_torch.select_experts(logits, None, rule, first)
    expected = TORCH.select_experts(logits, None, rule, first)
    assert torch.equal(full[0], expected[0])
    part = batch_invariant_torch.select_experts(logits[4:8], None, rule, first[:4])
    assert all(torch.equal(one[4:8], other) for one, other in zip(full, part, strict=True))


@pytest.mark.parametrize("window", [None, 9])
def test_attention(window):
    runs = [(20, 11), (0, 30), (64, 1)]
    q, k, v, batch = attention_case(runs, 4, 2, 12, 8, 8, torch.float32, "cpu", 2)
    q = torch.cat([q, torch.full_like(q[:2], float("nan"))])
    batch = with_any_sight(batch, [cached + new for cached, new in runs], 3)
    shape = AttentionShape(4, 2, 12, 0.3)
    out = BatchInvariantAttention(shape).prepare_metadata(batch, window).run(q, LayerKV(k, v))
    base = TorchAttention(shape, torch.float32).prepare_metadata(batch, window).run(q, LayerKV(k, v))
    rows = sum(new for _, new in runs)  # outputs of padding rows are unused
    torch.testing.assert_close(out[:rows], base[:rows], rtol=1e-5, atol=1e-5)

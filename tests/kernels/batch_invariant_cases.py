"""Batch-invariant kernels of models with self-conditioning, each as a function of the rows to compute."""

import torch
import torch.nn.functional as F

from runtime.kernels.fused_moe.fused_moe import TopKOutputs
from runtime.kernels.fused_softmax_stats import StatsRequest
from runtime.kernels.linear import batch_invariant_gemm
from runtime.kernels.moe_router import RoutingConfig
from runtime.kernels.ops import BATCH_INVARIANT_TRITON
from tests.kernels.cases import assert_near, random
from tests.kernels.quantized_cases import Kernel, Some
from tests.kernels.weighted_embedding_cases import distributions, multiplied


def means(rows: int, ids: int, size: int, dtype: torch.dtype, device: str) -> Kernel:
    probs, table = distributions(rows, ids, dtype, device), random(ids, size, dtype=dtype, device=device, seed=92)
    multiples, divisor = multiplied(probs)

    def computed(some: Some) -> tuple[torch.Tensor, ...]:
        return BATCH_INVARIANT_TRITON.soft_embedding(probs[some], table), BATCH_INVARIANT_TRITON.soft_embedding(
            multiples[some], table, divisor[some]
        )

    return computed


def heads(rows: int, vocab: int, size: int, dtype: torch.dtype, device: str) -> Kernel:
    """Returns logits and their softmax statistics. Every third row takes the argmax, the others are sampled."""
    hidden = random(rows, size, dtype=dtype, device=device, seed=93)
    weight = random(vocab, size, dtype=dtype, device=device, seed=94, scale=8 * size**-0.5)
    numbers = torch.Generator().manual_seed(rows)
    temperature = (0.4 + torch.rand(rows, generator=numbers, dtype=torch.float64)).to(device)
    uniform = torch.rand(rows, generator=numbers, dtype=torch.float64)
    uniform[::3] = -1
    uniform = uniform.to(device)

    def computed(some: Some) -> tuple[torch.Tensor, ...]:
        logits = BATCH_INVARIANT_TRITON.head_logits(hidden[some], weight)
        found = BATCH_INVARIANT_TRITON.softmax_stats(
            logits, StatsRequest(temperature[some], uniform[some], 30.0, vocab - 1, vocab - 3, dtype)
        )
        return (logits, *found)

    return computed


def sandwiches(rows: int, size: int, dtype: torch.dtype, device: str) -> Kernel:
    """Returns the sandwich norms. As in a layer, the offset of `scale` in memory depends on the number of rows."""
    mixed, x, dense, chosen = (random(rows, size, dtype=dtype, device=device, seed=n) for n in range(95, 99))
    pairs = random(rows, 3, size, dtype=dtype, device=device, seed=110)
    ids = torch.randint(-1, 5, (rows, 3), generator=torch.Generator().manual_seed(rows)).int().to(device)
    routing_weights, scales = (random(*of, dtype=torch.float32, device=device, seed=111) for of in ((rows, 3), (5,)))
    weights = [1 + random(size, dtype=dtype, device=device, seed=n, scale=0.2) for n in range(99, 106)]
    scale = random(rows, dtype=dtype, device=device, seed=107)

    def computed(some: Some) -> tuple[torch.Tensor, ...]:
        before, after, _ = BATCH_INVARIANT_TRITON.sandwich_norms
        own = torch.stack([scale[some]] * 3)[1][:, None]
        choices = TopKOutputs(pairs[some].flatten(0, 1), ids[some], routing_weights[some], scales)
        made = before(mixed[some], x[some], *weights[:3], 1e-6)
        for each in (chosen[some], choices):
            made = (*made, *after(dense[some], each, x[some], own, tuple(weights[3:]), 1e-6))
        return made

    return computed


def routers(rows: int, experts: int, device: str) -> Kernel:
    """Returns expert selection by softmax of router logits that are split into four partial sums."""
    logits = random(4, rows, experts, dtype=torch.float32, device=device, seed=108)
    rule = RoutingConfig(2, 1, 1, True, 1.0, "softmax")
    return lambda some: BATCH_INVARIANT_TRITON.select_experts(logits[:, some].contiguous(), None, rule)


def gates(rows: int, width: int, dtype: torch.dtype, device: str) -> Kernel:
    gate_up = random(rows, 2 * width, dtype=dtype, device=device, seed=109)
    return lambda some: (BATCH_INVARIANT_TRITON.act_and_mul(gate_up[some], "gelu_tanh"),)


def check_gemm(rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: str) -> None:
    x, weight = (random(n, inputs, dtype=dtype, device=device, seed=s) for n, s in ((rows, 5), (outputs, 6)))
    bias = random(outputs, dtype=dtype, device=device, seed=7)
    expected = F.linear(x.double(), weight.double())
    assert_near(batch_invariant_gemm(x, weight), expected, dtype)
    assert_near(batch_invariant_gemm(x, weight, bias), expected + bias.double(), dtype)

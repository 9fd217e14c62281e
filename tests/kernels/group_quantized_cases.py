"""Kernels of weights of few bits against the float64 product of the numbers that these stand for, as `cases.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.kernels import quantized_linear
from runtime.kernels.activation import Activation, interleave_gate_up
from runtime.kernels.fused_moe import fused_moe
from runtime.kernels.fused_moe.fused_moe import moe_reference
from runtime.kernels.ops import BATCH_INVARIANT_TRITON, TRITON
from runtime.kernels.quantized_linear import dequantize
from runtime.kernels.quantized_tensor import GroupQuantized, quantize_blocks, quantize_groups, quantize_rows
from tests.kernels.cases import assert_near, random, random_ids

Some = torch.Tensor | slice  # which rows
Kernel = Callable[[Some], tuple[torch.Tensor, ...]]
KINDS = ("int8", "int4", "int4_32", "blocks")


def made(x: torch.Tensor, kind: str) -> GroupQuantized:
    """`x` in a format; blocks: e4m3 with a scale for each 128 inputs."""
    if kind == "int8":
        return quantize_rows(x)
    if kind == "blocks":
        return quantize_blocks(x, 128)
    return quantize_groups(x, int(kind.partition("_")[2] or 128))


def check_linear(
    rows: int, inputs: int, outputs: int, biased: bool, kind: str, dtype: torch.dtype, device: str
) -> None:
    x = random(rows, inputs, dtype=dtype, device=device, seed=50)
    weight = made(random(outputs, inputs, dtype=dtype, device=device, seed=51, scale=inputs**-0.5), kind)
    bias = random(outputs, dtype=dtype, device=device, seed=52) if biased else None
    out = quantized_linear.group_quantized_linear(x, weight, bias)
    added = 0 if bias is None else bias.double()
    assert_near(out, x.double() @ weight.dequantize(torch.float64).T + added, dtype)
    assert torch.equal(out, quantized_linear.group_quantized_linear(x, weight, bias)), "two runs differ"


def check_whole(rows: int, size: int, kind: str, dtype: torch.dtype, device: str) -> None:
    weight = made(random(rows, size, dtype=dtype, device=device, seed=60), kind)
    torch.testing.assert_close(dequantize(weight, dtype), weight.dequantize(dtype), rtol=1e-6, atol=0)


def check_moe(
    rows: int, hidden: int, width: int, experts: int, top_k: int, shared: bool, crowded: bool, kind: str,
    dtype: torch.dtype, device: str, activation: Activation = "silu", dead: float = 0.0,
) -> None:  # fmt: skip
    x = random(rows, hidden, dtype=dtype, device=device, seed=53)
    gate_up = random(experts, 2 * width, hidden, dtype=dtype, device=device, seed=54, scale=hidden**-0.5)
    down = random(experts, hidden, width, dtype=dtype, device=device, seed=55, scale=width**-0.5)
    extra = random(rows, hidden, dtype=dtype, device=device, seed=56) if shared else None
    weights = torch.rand(rows, top_k, generator=torch.Generator().manual_seed(57)).to(device)
    ids = random_ids(rows, experts, top_k, device, crowded, dead)
    swap_ab, kept = made(interleave_gate_up(gate_up), kind), made(down, kind)
    out = fused_moe.fused_moe(x, ids, weights, swap_ab, kept, extra, activation)
    expected = moe_reference(
        x.double(), ids, weights.double(), made(gate_up, kind).dequantize(torch.float64),
        kept.dequantize(torch.float64), None if extra is None else extra.double(), activation,
    )  # fmt: skip
    assert_near(out, expected, dtype)
    assert torch.equal(out, fused_moe.fused_moe(x, ids, weights, swap_ab, kept, extra, activation)), "two runs differ"
    if activation == "silu":
        residual = random(rows, hidden, dtype=dtype, device=device, seed=58)
        scale = 1 + random(hidden, dtype=dtype, device=device, seed=59, scale=0.2)
        normed, total = fused_moe.fused_moe_add_norm(x, ids, weights, swap_ab, kept, extra, residual, scale, 1e-6)
        normal, sums = TRITON.add_rms_norm(out, residual, scale, 1e-6)
        assert_near(total, sums, dtype)
        assert_near(normed, normal, dtype, slack=2)


def fixed_linear(rows: int, inputs: int, outputs: int, kind: str, dtype: torch.dtype, device: str) -> Kernel:
    """The deterministic linear layer of some of `rows`."""
    x = random(rows, inputs, dtype=dtype, device=device, seed=70)
    weight = made(random(outputs, inputs, dtype=dtype, device=device, seed=71, scale=inputs**-0.5), kind)
    bias = random(outputs, dtype=dtype, device=device, seed=72)
    return lambda some: (BATCH_INVARIANT_TRITON.group_quantized.linear(x[some], weight, bias),)


def fixed_moe(
    rows: int, hidden: int, width: int, experts: int, top_k: int, kind: str, dtype: torch.dtype, device: str, *,
    crowded: bool = False,
) -> Kernel:  # fmt: skip
    """The deterministic experts of some of `rows`: alone, and with what follows them."""
    x = random(rows, hidden, dtype=dtype, device=device, seed=73)
    gate_up = random(experts, 2 * width, hidden, dtype=dtype, device=device, seed=74, scale=hidden**-0.5)
    down = made(random(experts, hidden, width, dtype=dtype, device=device, seed=75, scale=width**-0.5), kind)
    residual = random(rows, hidden, dtype=dtype, device=device, seed=76)
    norm = 1 + random(hidden, dtype=dtype, device=device, seed=77, scale=0.2)
    weights = torch.rand(rows, top_k, generator=torch.Generator().manual_seed(78)).to(device)
    ids, swap_ab = random_ids(rows, experts, top_k, device, crowded, dead=0.1), made(interleave_gate_up(gate_up), kind)
    kernels = BATCH_INVARIANT_TRITON.for_quantization("int4")  # as all of these

    def computed(some: Some) -> tuple[torch.Tensor, ...]:
        given = x[some], ids[some], weights[some], swap_ab, down
        assert kernels.moe_add_norm is not None
        return (
            kernels.moe(*given, residual[some], "gelu_tanh"),
            *kernels.moe_add_norm(*given, None, residual[some], norm, 1e-6),
        )

    return computed

"""Kernels of eight bits against their references, as `cases.py`: to the rounding that both do alike, and to the float64
product of what was given, within what eight bits may cost."""

from __future__ import annotations

import torch

from runtime.kernels import quantized_linear
from runtime.kernels.activation import Activation, act_and_mul_reference, interleave_gate_up
from runtime.kernels.fused_moe import fused_moe
from runtime.kernels.fused_moe.fused_moe import moe_reference
from runtime.kernels.ops import TRITON
from runtime.kernels.quantized_tensor import quantize_fp8, quantize_fp8_reference, quantized_of
from tests.kernels.cases import TOLERANCE, assert_near, random, random_ids

MANY = 1000  # numbers whose mean error is what it is of any
LINEAR, MOE = 0.045, 0.065  # ||out - product|| / ||product|| of e4m3 with a scale for each row, on both sides
# of sums that the matrix unit keeps 14 bits of, and of numbers that lie so near between two that they round either way
ALIKE = 5e-3


def distance(out: torch.Tensor, expected: torch.Tensor) -> float:
    assert out.shape == expected.shape
    assert torch.isfinite(out).all()
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def check_quantise(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    x = random(rows, size, dtype=dtype, device=device, seed=30) * torch.logspace(-3, 3, rows)[:, None].to(device, dtype)
    x[rows // 2] = 0
    got, expected = quantize_fp8(x), quantize_fp8_reference(x)
    torch.testing.assert_close(got.scales, expected.scales)
    values, wanted = got.values.float(), expected.values.float()
    assert float((values != wanted).float().mean()) < 1e-3
    # those that lie between two may go to the other one
    torch.testing.assert_close(values, wanted, rtol=0.13, atol=0.002)
    assert not values[rows // 2].any()


def check_made_beside(rows: int, size: int, activation: Activation, dtype: torch.dtype, device: str) -> None:
    """Norms and gates as the plain ones, and beside them what `quantise` makes of them."""
    x, residual = (random(rows, size, dtype=dtype, device=device, seed=s) for s in (40, 41))
    weight = 1 + random(size, dtype=dtype, device=device, seed=42, scale=0.2)
    gates = random(rows, 2 * size, dtype=dtype, device=device, seed=43, scale=3.0)
    plain, own = TRITON, TRITON.fp8
    for out, expected in (
        (own.rms_norm(x, weight, 1e-6), plain.rms_norm(x, weight, 1e-6)),
        (own.rms_norm(x, None, 1e-6), plain.rms_norm(x, None, 1e-6)),
        (own.add_rms_norm(x, residual, weight, 1e-6)[0], plain.add_rms_norm(x, residual, weight, 1e-6)[0]),
        (own.act_and_mul(gates, activation), plain.act_and_mul(gates, activation)),
    ):
        assert_near(out, expected, dtype)
        made, again = quantized_of(out), quantize_fp8(out)
        torch.testing.assert_close(made.scales, again.scales)
        assert float((made.values.float() != again.values.float()).float().mean()) < 1e-3
        assert quantized_of(out) is made
        assert quantized_of(out.clone()) is not made
    totals = (kernel(x, residual, weight, 1e-6)[1] for kernel in (own.add_rms_norm, plain.add_rms_norm))
    assert torch.equal(*totals)


def check_linear(rows: int, inputs: int, outputs: int, biased: bool, dtype: torch.dtype, device: str) -> None:
    x = random(rows, inputs, dtype=dtype, device=device, seed=31)
    weight = random(outputs, inputs, dtype=dtype, device=device, seed=32, scale=inputs**-0.5)
    bias = random(outputs, dtype=dtype, device=device, seed=33) if biased else None
    kept = quantize_fp8_reference(weight)
    out = quantized_linear.fp8_linear(x, kept, bias)
    added = 0 if bias is None else bias.double()
    assert out.dtype == dtype
    same = quantize_fp8_reference(x).dequantize(torch.float64) @ kept.dequantize(torch.float64).T + added
    assert distance(out, same) < TOLERANCE[dtype] + ALIKE
    if out.numel() >= MANY:
        assert distance(out, x.double() @ weight.double().T + added) < LINEAR
    assert torch.equal(out, quantized_linear.fp8_linear(x, kept, bias)), "two runs differ"


def check_moe(
    rows: int, hidden: int, width: int, experts: int, top_k: int, shared: bool, crowded: bool,
    dtype: torch.dtype, device: str, activation: Activation = "silu", dead: float = 0.0,
) -> None:  # fmt: skip
    x = random(rows, hidden, dtype=dtype, device=device, seed=34)
    gate_up = random(experts, 2 * width, hidden, dtype=dtype, device=device, seed=35, scale=hidden**-0.5)
    down = random(experts, hidden, width, dtype=dtype, device=device, seed=36, scale=width**-0.5)
    extra = random(rows, hidden, dtype=dtype, device=device, seed=37) if shared else None
    weights = torch.rand(rows, top_k, generator=torch.Generator().manual_seed(38)).to(device)
    ids = random_ids(rows, experts, top_k, device, crowded, dead)
    given, kept = quantize_fp8_reference(interleave_gate_up(gate_up)), quantize_fp8_reference(down)
    out = fused_moe.fused_moe(x, ids, weights, given, kept, extra, activation)
    assert out.dtype == dtype
    again = fused_moe.fused_moe(x, ids, weights, given, kept, extra, activation)
    assert torch.equal(out, again), "two runs differ"
    if activation == "silu":
        residual = random(rows, hidden, dtype=dtype, device=device, seed=39)
        scale = 1 + random(hidden, dtype=dtype, device=device, seed=44, scale=0.2)
        normed, total = fused_moe.fused_moe_add_norm(x, ids, weights, given, kept, extra, residual, scale, 1e-6)
        expected = TRITON.add_rms_norm(out, residual, scale, 1e-6)
        assert_near(total, expected[1], dtype)
        assert_near(normed, expected[0], dtype, slack=2)
        assert distance(quantized_of(normed).dequantize(torch.float32), normed) < LINEAR
        assert quantized_of(normed) is quantized_of(normed)
    added = torch.zeros_like(x) if extra is None else extra
    same = moe_of_eight_bits(x, ids, weights, gate_up, down, activation) + added.double()
    assert distance(out, same) < TOLERANCE[dtype] + 2 * ALIKE
    if out.numel() >= MANY:
        plain = moe_reference(x.double(), ids, weights.double(), gate_up.double(), down.double(), None, activation)
        assert distance(out - added, plain) < MOE + TOLERANCE[dtype]


def moe_of_eight_bits(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    activation: Activation,
) -> torch.Tensor:  # fmt: skip
    """float64 but for the numbers that are rounded."""
    quantized_of = quantize_fp8_reference(x).dequantize(torch.float64)
    total = torch.zeros_like(quantized_of)
    for expert in range(len(gate_up)):
        row, choice = (ids == expert).nonzero(as_tuple=True)
        if len(row):
            products = quantized_of[row] @ quantize_fp8_reference(gate_up[expert]).dequantize(torch.float64).T
            hidden = quantize_fp8_reference(act_and_mul_reference(products, activation).to(x.dtype)).dequantize(
                torch.float64
            )
            out = hidden @ quantize_fp8_reference(down[expert]).dequantize(torch.float64).T
            total.index_add_(0, row, weights[row, choice, None].double() * out)
    return total

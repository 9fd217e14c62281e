"""Kernels of weights of few bits against the float64 product of the numbers that these stand for, as `cases.py`."""

from __future__ import annotations

import torch

from runtime.kernels import grouped_experts, grouped_linear
from runtime.kernels.dispatch import TRITON
from runtime.kernels.gate import Activation
from runtime.kernels.grouped import Grouped, quantise_groups, quantise_rows, room
from runtime.kernels.grouped_whole import whole
from runtime.kernels.moe import moe_reference
from runtime.kernels.turns import in_turns
from tests.kernels.cases import assert_near, random, random_ids

KINDS = ("int8", "int4", "int4_32", "blocks")


def made(x: torch.Tensor, kind: str) -> Grouped:
    """`x` in a format; blocks: e4m3 with a scale for each 128 inputs."""
    if kind == "int8":
        return quantise_rows(x)
    if kind != "blocks":
        return quantise_groups(x, int(kind.partition("_")[2] or 128))
    kept = room(tuple(x.shape), torch.float8_e4m3fn, 128, x.device)
    parts = x.float().split(128, -1)
    kept.scales.copy_(torch.stack([part.abs().amax(-1) / 448 for part in parts], -1))
    scales = kept.scales.repeat_interleave(128, -1)[..., : kept.size]
    kept.values.copy_((x.float() / scales).to(torch.float8_e4m3fn))
    return kept


def check_linear(
    rows: int, inputs: int, outputs: int, biased: bool, kind: str, dtype: torch.dtype, device: str
) -> None:
    x = random(rows, inputs, dtype=dtype, device=device, seed=50)
    weight = made(random(outputs, inputs, dtype=dtype, device=device, seed=51, scale=inputs**-0.5), kind)
    bias = random(outputs, dtype=dtype, device=device, seed=52) if biased else None
    out = grouped_linear.linear(x, weight, bias)
    added = 0 if bias is None else bias.double()
    assert_near(out, x.double() @ weight.whole(torch.float64).T + added, dtype)
    assert torch.equal(out, grouped_linear.linear(x, weight, bias)), "two runs differ"


def check_whole(rows: int, size: int, kind: str, dtype: torch.dtype, device: str) -> None:
    weight = made(random(rows, size, dtype=dtype, device=device, seed=60), kind)
    torch.testing.assert_close(whole(weight, dtype), weight.whole(dtype), rtol=1e-6, atol=0)


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
    turned, kept = made(in_turns(gate_up), kind), made(down, kind)
    out = grouped_experts.moe(x, ids, weights, turned, kept, extra, activation)
    expected = moe_reference(
        x.double(), ids, weights.double(), made(gate_up, kind).whole(torch.float64), kept.whole(torch.float64),
        None if extra is None else extra.double(), activation,
    )  # fmt: skip
    assert_near(out, expected, dtype)
    assert torch.equal(out, grouped_experts.moe(x, ids, weights, turned, kept, extra, activation)), "two runs differ"
    if activation == "silu":
        residual = random(rows, hidden, dtype=dtype, device=device, seed=58)
        scale = 1 + random(hidden, dtype=dtype, device=device, seed=59, scale=0.2)
        normed, total = grouped_experts.moe_add_norm(x, ids, weights, turned, kept, extra, residual, scale, 1e-6)
        normal, sums = TRITON.add_rms_norm(out, residual, scale, 1e-6)
        assert_near(total, sums, dtype)
        assert_near(normed, normal, dtype, slack=2)

"""The torch kernels a row at a time. Libraries choose by the shape of what they are given how to sum it, and by where a
number lies which instructions compute it; one row, in memory of its own, is always the same to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from runtime.kernels import quant_reference
from runtime.kernels.activation import Activation, gate_mul_reference
from runtime.kernels.kv_write import write_kv_reference
from runtime.kernels.layernorm import add_rms_norm_reference, rms_norm_reference
from runtime.kernels.lora import LoraRows, add_lora_reference
from runtime.kernels.moe import written
from runtime.kernels.moe_router import RoutingRule, route_reference
from runtime.kernels.moe_router_gemm import router_logits_reference, scaled
from runtime.kernels.quant_reference import Packed
from runtime.kernels.rotary_and_cache import qk_norm_rotary_reference

Two = tuple[torch.Tensor, torch.Tensor]


def alone(x: torch.Tensor) -> list[torch.Tensor]:
    """[rows, ...] -> each as [1, ...], aligned as the allocator aligns."""
    return [row.clone(memory_format=torch.contiguous_format) for row in x.split(1)]


def each(kernel: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return torch.cat([kernel(row) for row in alone(x)])


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``F.linear``."""
    return each(lambda row: F.linear(row, weight, bias), x)


def add_lora(
    out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, cuts: Sequence[int], rows: LoraRows
) -> None:
    for at, (made, row, slot) in enumerate(zip(alone(out), alone(x), rows.slots.split(1), strict=True)):
        add_lora_reference(made, row, down, up, cuts, replace(rows, slots=slot))
        out[at] = made[0]


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return each(lambda row: rms_norm_reference(row, weight, eps), x)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float) -> Two:
    made = [add_rms_norm_reference(*both, weight, eps) for both in zip(alone(x), alone(residual), strict=True)]
    normed, total = zip(*made, strict=True)
    return torch.cat(normed), torch.cat(total)


def qkv_to_pages(
    qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None, heads: int, kv_heads: int, eps: float, clip: float | None = None, *,
    slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    apart: int | None = None, v_norm: bool = False, v_from_k: bool = False,
) -> torch.Tensor:  # fmt: skip
    made = [
        qk_norm_rotary_reference(
            row, position, table, q_weight, k_weight, heads, kv_heads, eps, clip, apart=apart, v_norm=v_norm,
            v_from_k=v_from_k,
        )
        for row, position in zip(alone(qkv), positions.split(1), strict=True)
    ]  # fmt: skip
    q, k, v = (torch.cat(rows) for rows in zip(*made, strict=True))
    write_kv_reference(k, v, slots, k_cache, v_cache)
    return q


def gate_mul(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    return each(lambda row: gate_mul_reference(row, activation), gate_up)


def router_logits(x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    return scaled(each(lambda row: router_logits_reference(row, weight), x), factor)


def route(logits: torch.Tensor, bias: torch.Tensor | None, rule: RoutingRule, first: torch.Tensor | None = None) -> Two:
    """Rows that choose among a pool of their block's: a block at a time, which is always whole."""
    if rule.capacity:
        assert first is not None
        counts = torch.unique_consecutive(first, return_counts=True)[1].tolist()
        made = [route_reference(part.clone(), bias, rule, torch.zeros_like(first[: len(part)]))
                for part in logits.split(counts)]  # fmt: skip
    else:
        made = [route_reference(row, bias, rule) for row in alone(logits)]
    ids, weights = zip(*made, strict=True)
    return torch.cat(ids), torch.cat(weights)


def moe(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    shared: torch.Tensor | None, activation: Activation = "silu", out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    return _experts(
        x, ids, weights, shared, activation, out,
        lambda row, expert: F.linear(row, gate_up[expert]), lambda row, expert: F.linear(row, down[expert]),
    )  # fmt: skip


def packed_linear(x: torch.Tensor, weight: Packed, bias: torch.Tensor | None) -> torch.Tensor:
    """``packed_torch.linear_torch``; a piece of the weight is made whole once for all rows."""
    rows, (outputs, inputs) = alone(x), weight.shape
    out = x.new_empty(len(x), outputs)
    step = max(1, quant_reference.PIECE // inputs)
    for first in range(0, outputs, step):
        part = slice(first, first + step)
        whole, added = weight[part].whole(x.dtype), None if bias is None else bias[part]
        for i, row in enumerate(rows):
            out[i, part] = F.linear(row, whole, added)[0]
    return out


def packed_moe(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Packed, down: Packed,
    shared: torch.Tensor | None, activation: Activation = "silu", out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    return _experts(
        x, ids, weights, shared, activation, out,
        lambda row, expert: quant_reference.linear_torch(row, gate_up[expert], None),
        lambda row, expert: quant_reference.linear_torch(row, down[expert], None),
    )  # fmt: skip


Expert = Callable[[torch.Tensor, int], torch.Tensor]


def _experts(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None, activation: Activation,
    out: torch.Tensor | None, gate_up: Expert, down: Expert,
) -> torch.Tensor:  # fmt: skip
    """``moe.moe_reference`` of each row, its experts in the order of their rank."""
    up = weights.dtype
    made = []
    for i, row in enumerate(alone(x)):
        total = torch.zeros_like(row, dtype=up) if shared is None else shared[i : i + 1].to(up)
        for expert, weight in zip(ids[i].tolist(), weights[i], strict=True):
            if expert >= 0:
                total = total + weight * down(gate_mul_reference(gate_up(row, expert), activation), expert).to(up)
        made.append(total.to(x.dtype))
    return written(torch.cat(made), out)

"""Batch-invariant torch kernels: they process one row at a time.

Libraries select the summation order by the shape of the input, and vector instructions by its alignment. One row in its
own memory always gets the same order and the same instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation, act_and_mul_reference
from runtime.kernels.fused_moe.fused_moe import Matrices, expert_linear, store_result
from runtime.kernels.layernorm import add_rms_norm_reference, rms_norm_reference
from runtime.kernels.linear import quantized_linear_torch
from runtime.kernels.lora import LoRABatch, add_lora_reference
from runtime.kernels.moe_router import RoutingConfig, apply_factor, router_logits_reference, select_experts_reference
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.kernels.rotary_and_cache import QKNormRopeConfig, qk_norm_rope_reference, write_kv_reference

TensorPair = tuple[torch.Tensor, torch.Tensor]


def split_rows(x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the rows of `x` [rows, ...] as tensors [1, ...], each in its own allocation with the same alignment."""
    return [row.clone(memory_format=torch.contiguous_format) for row in x.split(1)]


def per_row(kernel: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return torch.cat([kernel(row) for row in split_rows(x)])


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Computes ``F.linear`` per row."""
    return per_row(lambda row: F.linear(row, weight, bias), x)


def add_lora(
    out: torch.Tensor, x: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, part_starts: Sequence[int],
    batch: LoRABatch,
) -> None:  # fmt: skip
    slots = batch.lora_slots.split(1)
    for at, (result, row, slot) in enumerate(zip(split_rows(out), split_rows(x), slots, strict=True)):
        add_lora_reference(result, row, lora_a, lora_b, part_starts, replace(batch, lora_slots=slot))
        out[at] = result[0]


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return per_row(lambda row: rms_norm_reference(row, weight, eps), x)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float) -> TensorPair:
    result = [
        add_rms_norm_reference(*both, weight, eps) for both in zip(split_rows(x), split_rows(residual), strict=True)
    ]
    normed, total = zip(*result, strict=True)
    return torch.cat(normed), torch.cat(total)


def qk_norm_rope_and_cache(
    qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None, config: QKNormRopeConfig, slots: torch.Tensor, k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    result = [
        qk_norm_rope_reference(row, position, table, q_weight, k_weight, config)
        for row, position in zip(split_rows(qkv), positions.split(1), strict=True)
    ]
    q, k, v = (torch.cat(rows) for rows in zip(*result, strict=True))
    write_kv_reference(k, v, slots, k_cache, v_cache)
    return q


def act_and_mul(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    return per_row(lambda row: act_and_mul_reference(row, activation), gate_up)


def router_logits(x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    return apply_factor(per_row(lambda row: router_logits_reference(row, weight), x), factor)


def select_experts(
    logits: torch.Tensor, bias: torch.Tensor | None, config: RoutingConfig, first: torch.Tensor | None = None
) -> TensorPair:
    """Computes ``select_experts_reference`` per row, or per block if the rows of a block share an expert pool."""
    if config.capacity:
        assert first is not None
        counts = torch.unique_consecutive(first, return_counts=True)[1].tolist()
        result = [select_experts_reference(part.clone(), bias, config, torch.zeros_like(first[: len(part)]))
                for part in logits.split(counts)]  # fmt: skip
    else:
        result = [select_experts_reference(row, bias, config) for row in split_rows(logits)]
    ids, weights = zip(*result, strict=True)
    return torch.cat(ids), torch.cat(weights)


def quantized_linear(x: torch.Tensor, weight: QuantizedTensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Computes `quantized_linear_torch` per row; each chunk of the weight is dequantized once for all rows."""
    return quantized_linear_torch(x, weight, bias, linear)


def moe(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Matrices, down: Matrices,
    shared: torch.Tensor | None, activation: Activation = "silu", out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Computes `moe_reference` per row, with the experts in the order of their rank."""
    up = weights.dtype
    result = []
    for i, row in enumerate(split_rows(x)):
        total = torch.zeros_like(row, dtype=up) if shared is None else shared[i : i + 1].to(up)
        for expert, weight in zip(ids[i].tolist(), weights[i], strict=True):
            if expert >= 0:
                hidden = act_and_mul_reference(expert_linear(row, gate_up, expert), activation)
                total = total + weight * expert_linear(hidden, down, expert).to(up)
        result.append(total.to(x.dtype))
    return store_result(torch.cat(result), out)

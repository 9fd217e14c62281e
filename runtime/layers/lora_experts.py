"""MoE with LoRA: both GEMMs run separately, each with the adapter of each row."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.activation import Activation, act_and_mul_reference
from runtime.kernels.precision import wide
from runtime.layers.lora import LoRAContext, LoRAWeight
from runtime.layers.parameter import Weight


def lora_experts(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Weight, down: Weight,
    shared: torch.Tensor | None, lora: LoRAContext, activation: Activation = "silu",
) -> torch.Tensor:  # fmt: skip
    """``kernels.moe.moe_reference`` of weights with LoRA. Synchronizes the device, so it cannot be captured."""
    rows, top_k = ids.shape
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)
    order = order[int((flat < 0).sum()) :]  # token-expert pairs sorted by expert, without -1
    expert, row = flat[order], order // top_k
    slots = torch.full_like(row, -1) if lora.rows is None else lora.rows.slots[row]
    hidden = act_and_mul_reference(_expert_gemm(x[row], expert, slots, gate_up), activation)
    result = _expert_gemm(hidden, expert, slots, down)
    up = wide(x.dtype)
    by_choice = result.new_zeros(rows * top_k, result.shape[1]).index_copy_(0, order, result)
    by_choice = by_choice.view(rows, top_k, -1).to(up)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up)
    for choice, weight in enumerate(torch.split(weights.to(up), 1, dim=1)):
        total = torch.addcmul(total, weight, by_choice[:, choice])
    return total.to(x.dtype)


def _expert_gemm(x: torch.Tensor, expert: torch.Tensor, slots: torch.Tensor, weight: Weight) -> torch.Tensor:
    """[pairs, inputs] -> [pairs, outputs], each pair with its expert."""
    out = grouped_gemm(x, expert, weight.tensor)
    for slot, stacks in weight.stacks.items() if isinstance(weight, LoRAWeight) else ():
        slot_rows = (slots == slot).nonzero().flatten()
        if not len(slot_rows):
            continue
        for stack in stacks:
            delta = grouped_gemm(grouped_gemm(x[slot_rows], expert[slot_rows], stack.down), expert[slot_rows], stack.up)
            out[:, stack.outputs].index_add_(0, slot_rows, delta)
    return out


def grouped_gemm(x: torch.Tensor, expert: torch.Tensor, stack: torch.Tensor) -> torch.Tensor:
    """Row i of `x` [rows, inputs], sorted by expert, times ``stack[expert[i]]`` [outputs, inputs]."""
    counts = torch.bincount(expert, minlength=len(stack))
    if x.is_cuda and x.dtype == torch.bfloat16:
        return F.grouped_mm(x, stack.transpose(1, 2), offs=counts.cumsum(0).int())
    out = x.new_empty(len(x), stack.shape[1])
    first = 0
    for number, count in enumerate(counts.tolist()):
        if count:
            torch.mm(x[first : first + count], stack[number].t(), out=out[first : first + count])
            first += count
    return out

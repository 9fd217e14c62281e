"""Which implementation of each kernel a model uses: chosen once, when it is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from runtime.kernels import fp8_experts, fp8_linear, fp8_torch
from runtime.kernels.expert_products import moe
from runtime.kernels.fp8 import Fp8
from runtime.kernels.gate import Activation, gate_mul, gate_mul_reference
from runtime.kernels.kv_write import write_kv, write_kv_reference
from runtime.kernels.moe import moe_torch
from runtime.kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from runtime.kernels.rotary import qk_norm_rotary, qk_norm_rotary_reference
from runtime.kernels.routing import RoutingRule, route, route_reference

Two = tuple[torch.Tensor, torch.Tensor]


class RMSNormKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor: ...


class AddRMSNormKernel(Protocol):
    def __call__(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float) -> Two: ...


class QKNormRotaryKernel(Protocol):
    def __call__(
        self, qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None, heads: int, kv_heads: int, eps: float, clip: float | None = None, *,
        apart: int | None = None, v_norm: bool = False, v_from_k: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...  # fmt: skip


class WriteKVKernel(Protocol):
    def __call__(
        self, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> None: ...


class GateKernel(Protocol):
    def __call__(self, gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor: ...


class RouteKernel(Protocol):
    def __call__(
        self, logits: torch.Tensor, bias: torch.Tensor | None, rule: RoutingRule, first: torch.Tensor | None = None
    ) -> Two: ...


class MoEKernel(Protocol):
    """`gate_up`, `down`: operands of the format that it is for (``Weight.operand``)."""

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Any, down: Any,
        shared: torch.Tensor | None, activation: Activation = "silu",
    ) -> torch.Tensor: ...  # fmt: skip


class Fp8LinearKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: Fp8, bias: torch.Tensor | None) -> torch.Tensor: ...


@dataclass(frozen=True)
class Fp8Kernels:
    """What computes with weights of eight bits."""

    linear: Fp8LinearKernel
    moe: MoEKernel


@dataclass(frozen=True)
class Kernels:
    """One set of implementations with equal signatures (each reference's docstring is the contract)."""

    name: str
    turns: bool  # `moe` takes gate and up rows in turns (`turns.in_turns`), not gates first
    rms_norm: RMSNormKernel
    add_rms_norm: AddRMSNormKernel
    qk_norm_rotary: QKNormRotaryKernel
    write_kv: WriteKVKernel
    gate_mul: GateKernel
    route: RouteKernel
    moe: MoEKernel
    fp8: Fp8Kernels

    def of(self, quantization: str | None) -> Kernels:
        """For models whose experts are kept in this format."""
        return self if quantization is None else replace(self, moe=self.fp8.moe)


TORCH = Kernels(
    name="torch",
    turns=False,
    rms_norm=rms_norm_reference,
    add_rms_norm=add_rms_norm_reference,
    qk_norm_rotary=qk_norm_rotary_reference,
    write_kv=write_kv_reference,
    gate_mul=gate_mul_reference,
    route=route_reference,
    moe=moe_torch,
    fp8=Fp8Kernels(fp8_torch.linear_torch, fp8_torch.moe_torch),
)


TRITON = Kernels(
    name="triton",
    turns=True,
    rms_norm=rms_norm,
    add_rms_norm=add_rms_norm,
    qk_norm_rotary=qk_norm_rotary,
    write_kv=write_kv,
    gate_mul=gate_mul,
    route=route,
    moe=moe,
    fp8=Fp8Kernels(fp8_linear.linear, fp8_experts.moe),
)


def select_kernels(device: torch.device, dtype: torch.dtype, quantization: str | None = None) -> Kernels:
    """Triton on CUDA, torch elsewhere. float64, which exists for tests, is torch everywhere."""
    return (TRITON if device.type == "cuda" and dtype != torch.float64 else TORCH).of(quantization)

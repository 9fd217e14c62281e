"""Which implementation of each kernel a model uses: chosen once, when it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.kernels.gate import gate_mul, gate_mul_reference
from runtime.kernels.kv_write import write_kv, write_kv_reference
from runtime.kernels.moe import moe, moe_reference
from runtime.kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from runtime.kernels.rotary import qk_norm_rotary, qk_norm_rotary_reference
from runtime.kernels.routing import route, route_reference


@dataclass(frozen=True)
class Kernels:
    """One set of implementations with equal signatures (each reference's docstring is the contract)."""

    name: str
    rms_norm: Callable[..., torch.Tensor]
    add_rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    qk_norm_rotary: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    write_kv: Callable[..., None]
    gate_mul: Callable[..., torch.Tensor]
    route: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    moe: Callable[..., torch.Tensor]


TORCH = Kernels(
    name="torch",
    rms_norm=rms_norm_reference,
    add_rms_norm=add_rms_norm_reference,
    qk_norm_rotary=qk_norm_rotary_reference,
    write_kv=write_kv_reference,
    gate_mul=gate_mul_reference,
    route=route_reference,
    moe=moe_reference,
)


TRITON = Kernels(
    name="triton",
    rms_norm=rms_norm,
    add_rms_norm=add_rms_norm,
    qk_norm_rotary=qk_norm_rotary,
    write_kv=write_kv,
    gate_mul=gate_mul,
    route=route,
    moe=moe,
)


def select_kernels(device: torch.device, dtype: torch.dtype) -> Kernels:
    """Triton on CUDA, torch elsewhere. float64, which exists for tests, is torch everywhere."""
    return TRITON if device.type == "cuda" and dtype != torch.float64 else TORCH

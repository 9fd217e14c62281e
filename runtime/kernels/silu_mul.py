"""The gate of a SwiGLU: silu(gate) * up."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.precision import wide


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """[rows, 2 * width], gates first -> [rows, width] in the same dtype, computed wide."""
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)

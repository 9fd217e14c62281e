"""The gate of a SwiGLU: silu(gate) * up."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """[rows, 2 * width], gates first -> [rows, width] in the same dtype, computed wide."""
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


@triton.jit
def _silu_mul(gate_up_ptr, out_ptr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """One program: COLUMNS columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < WIDTH
    gate = tl.load(gate_up_ptr + row * 2 * WIDTH + column, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * WIDTH + WIDTH + column, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=ok)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu_mul_reference` for contiguous rows on a GPU."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    columns = min(1024, triton.next_power_of_2(width))
    _silu_mul[(rows, triton.cdiv(width, columns))](gate_up, out, WIDTH=width, COLUMNS=columns, num_warps=4)
    return out

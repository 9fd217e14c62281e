"""Activation of gated MLPs: silu(gate) * up or gelu(gate) * up, as a kernel and as the epilogue of a GEMM."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton

Activation = Literal["silu", "gelu_tanh"]  # gelu_tanh: GELU with the tanh approximation


def act_and_mul_reference(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """Returns act(gate) * up, [rows, width] in the input's dtype, computed in float32 (float64 for float64).

    Args:
        gate_up: [rows, 2 * width], gate columns first.
    """
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, dim=-1)
    gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return (gate * up).to(gate_up.dtype)


@triton.jit
def act_mul(gate, up, GELU: tl.constexpr):
    """Returns act(gate) * up in float32. GELU uses x * (1 + tanh(z)) / 2 = x * sigmoid(2z)."""
    inner = gate
    if GELU:
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(inner) * up


@triton.jit
def store_gated_tile(
    acc, out_ptr, row, end, column,
    WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SWAP_AB: tl.constexpr,
    GELU: tl.constexpr,
):  # fmt: skip
    """Stores act(gate) * up of an accumulator tile whose gate and up rows are interleaved.

    Row `row` [ROWS] is stored if it is below `end`, at `column` [COLUMNS] of [.., WIDTH]. With SWAP_AB the accumulator
    is transposed: its last dimension is the row.
    """
    ok = row < end
    at = out_ptr + row.to(tl.int64) * WIDTH
    if SWAP_AB:
        runs = tl.permute(tl.reshape(acc, [COLUMNS // INTERLEAVE, 2, INTERLEAVE, ROWS]), (0, 2, 3, 1))
        gate, up = tl.split(runs)
        value = tl.reshape(act_mul(gate, up, GELU), [COLUMNS, ROWS]).to(out_ptr.dtype.element_ty)
        tl.store(at[None, :] + column[:, None], value, mask=(column < WIDTH)[:, None] & ok[None, :])
    else:
        runs = tl.permute(tl.reshape(acc, [ROWS, COLUMNS // INTERLEAVE, 2, INTERLEAVE]), (0, 1, 3, 2))
        gate, up = tl.split(runs)
        value = tl.reshape(act_mul(gate, up, GELU), [ROWS, COLUMNS]).to(out_ptr.dtype.element_ty)
        tl.store(at[:, None] + column[None, :], value, mask=ok[:, None] & (column < WIDTH)[None, :])


@triton.jit
def _act_and_mul(
    gate_up_ptr, out_ptr, WIDTH: tl.constexpr, INTERLEAVE: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr
):  # fmt: skip
    """One program per row and COLUMNS columns. Groups of INTERLEAVE gate and up columns alternate."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < WIDTH
    at = gate_up_ptr + row * 2 * WIDTH
    if INTERLEAVE < WIDTH:
        at += column // INTERLEAVE * (2 * INTERLEAVE) + column % INTERLEAVE
    else:
        at += column
    gate = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(at + INTERLEAVE, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, act_mul(gate, up, GELU).to(out_ptr.dtype.element_ty), mask=ok)


def act_and_mul(
    gate_up: torch.Tensor, activation: Activation = "silu", *, interleave: int | None = None
) -> torch.Tensor:
    """`act_and_mul_reference` for contiguous rows on a GPU.

    Args:
        interleave: number of consecutive gate columns if gate and up are interleaved (`interleave.py`); None: all gate
            columns come first.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    columns = min(1024, triton.next_power_of_2(width))
    _act_and_mul[(rows, triton.cdiv(width, columns))](
        gate_up, out, WIDTH=width, INTERLEAVE=interleave or width, COLUMNS=columns, GELU=activation == "gelu_tanh",
        num_warps=4
    )  # fmt: skip
    return out

"""The gate of a feed-forward layer: silu(gate) * up, or gelu(gate) * up, of what a product made, or where one ends."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton

Activation = Literal["silu", "gelu_tanh"]  # the second: GELU by its approximation with a tanh


def gate_mul_reference(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """[rows, 2 * width], gates first -> [rows, width] in the same dtype, computed wide."""
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, dim=-1)
    gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return (gate * up).to(gate_up.dtype)


@triton.jit
def gated(gate, up, GELU: tl.constexpr):
    """act(gate) * up, in float32. x * (1 + tanh(z)) / 2 is x * sigmoid(2z)."""
    inner = gate
    if GELU:
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(inner) * up


@triton.jit
def keep_gated(
    acc, out_ptr, place, end, column,
    WIDTH: tl.constexpr, RUN: tl.constexpr, PLACES: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr,
    GELU: tl.constexpr,
):  # fmt: skip
    """Stores act(gate) * up of a tile's product, gate and up rows in turns, at `place` [PLACES], if that is before
    `end`, and `column` [COLUMNS] of [.., WIDTH]. TURNED: the product has its places last."""
    ok = place < end
    at = out_ptr + place.to(tl.int64) * WIDTH
    if TURNED:
        runs = tl.permute(tl.reshape(acc, [COLUMNS // RUN, 2, RUN, PLACES]), (0, 2, 3, 1))
        gate, up = tl.split(runs)
        value = tl.reshape(gated(gate, up, GELU), [COLUMNS, PLACES]).to(out_ptr.dtype.element_ty)
        tl.store(at[None, :] + column[:, None], value, mask=(column < WIDTH)[:, None] & ok[None, :])
    else:
        runs = tl.permute(tl.reshape(acc, [PLACES, COLUMNS // RUN, 2, RUN]), (0, 1, 3, 2))
        gate, up = tl.split(runs)
        value = tl.reshape(gated(gate, up, GELU), [PLACES, COLUMNS]).to(out_ptr.dtype.element_ty)
        tl.store(at[:, None] + column[None, :], value, mask=ok[:, None] & (column < WIDTH)[None, :])


@triton.jit
def _gate_mul(
    gate_up_ptr, out_ptr, WIDTH: tl.constexpr, RUN: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr
):  # fmt: skip
    """One program: COLUMNS columns of one row, whose gates and ups come in runs."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < WIDTH
    at = gate_up_ptr + row * 2 * WIDTH
    if RUN < WIDTH:
        at += column // RUN * (2 * RUN) + column % RUN
    else:
        at += column
    gate = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(at + RUN, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, gated(gate, up, GELU).to(out_ptr.dtype.element_ty), mask=ok)


def gate_mul(gate_up: torch.Tensor, activation: Activation = "silu", *, run: int | None = None) -> torch.Tensor:
    """`gate_mul_reference` for contiguous rows on a GPU. `run`: gates and ups are interleaved
    (`interleave.py`), so many of each; None: all gates come first."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    columns = min(1024, triton.next_power_of_2(width))
    _gate_mul[(rows, triton.cdiv(width, columns))](
        gate_up, out, WIDTH=width, RUN=run or width, COLUMNS=columns, GELU=activation == "gelu_tanh", num_warps=4
    )  # fmt: skip
    return out

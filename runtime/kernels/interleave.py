"""Interleaving of the gate and up rows of a gated MLP: a group of gate rows, the matching group of up rows, and so on.

A kernel then reads both with one load, and finds a gate and its up value in the same thread of the GEMM's accumulator.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

INTERLEAVE = 8  # rows per group: the distance of two accumulator rows that one thread holds


def interleave_group(width: int) -> int:
    """Returns the rows per group in a layer of this width."""
    return math.gcd(width, INTERLEAVE)


def interleave_gate_up(gate_up: torch.Tensor) -> torch.Tensor:
    """[..., 2 * width, inputs] with gate rows first -> the same rows interleaved."""
    width = gate_up.shape[-2] // 2
    groups = gate_up.unflatten(-2, (2, width // interleave_group(width), interleave_group(width)))
    return groups.transpose(-4, -3).flatten(-4, -2).contiguous()


def deinterleave(interleaved: torch.Tensor) -> torch.Tensor:
    """Inverse of `interleave_gate_up`."""
    width = interleaved.shape[-2] // 2
    groups = interleaved.unflatten(-2, (width // interleave_group(width), 2, interleave_group(width)))
    return groups.transpose(-4, -3).flatten(-4, -2).contiguous()


def deinterleave_outputs(outputs: torch.Tensor) -> torch.Tensor:
    """[..., 2 * width] computed from interleaved rows -> the order of gate rows first."""
    return deinterleave(outputs.unsqueeze(-1)).squeeze(-1)


@lru_cache(maxsize=16)  # experts are loaded one by one, with the same few indices
def interleaved_index(rows: range, width: int, device: torch.device) -> torch.Tensor:
    """Returns the interleaved row index, int64 [len(rows)], of `rows` in the order of gate rows first."""
    row, group = torch.arange(rows.start, rows.stop, device=device), interleave_group(width)
    half_row = row % width
    return half_row // group * 2 * group + torch.where(row < width, 0, group) + half_row % group

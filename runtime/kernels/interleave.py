"""Gate and up rows of a gated layer in turns: a run of gates, the run of ups that belongs to it, and so on.

A kernel then gets both with one load, and finds a gate and its up in the same thread of the matrix unit's result.
"""

from __future__ import annotations

import math

import torch

RUN = 8  # rows of a run: as far apart as two rows are that the matrix unit leaves with one thread


def run_of(width: int) -> int:
    """How many rows a run has in a layer of `width`."""
    return math.gcd(width, RUN)


def in_turns(gate_up: torch.Tensor) -> torch.Tensor:
    """[..., 2 * width, inputs], gate rows first -> the same rows in turns."""
    width = gate_up.shape[-2] // 2
    runs = gate_up.unflatten(-2, (2, width // run_of(width), run_of(width)))
    return runs.transpose(-4, -3).flatten(-4, -2).contiguous()


def gates_first(kept: torch.Tensor) -> torch.Tensor:
    """The inverse of `in_turns`."""
    width = kept.shape[-2] // 2
    runs = kept.unflatten(-2, (width // run_of(width), 2, run_of(width)))
    return runs.transpose(-4, -3).flatten(-4, -2).contiguous()


def outputs_first(made: torch.Tensor) -> torch.Tensor:
    """[..., 2 * width] that rows in turns made -> as rows with gates first make them."""
    return gates_first(made.unsqueeze(-1)).squeeze(-1)


def places(rows: range, width: int, device: torch.device) -> torch.Tensor:
    """int64 [len(rows)]: where `rows`, counted with gates first, lie in turns."""
    row, run = torch.arange(rows.start, rows.stop, device=device), run_of(width)
    of_half = row % width
    return of_half // run * 2 * run + torch.where(row < width, 0, run) + of_half % run

"""A dense layer's first product with its gate against float64, as `cases.py`."""

from __future__ import annotations

import torch

from runtime.kernels.activation import (
    GATE_UP_TILES,
    Activation,
    GateUpTile,
    fused_gate_up,
    fused_gate_up_reference,
    interleave_gate_up,
)
from tests.kernels.cases import assert_near, random

EVERY: list[GateUpTile | None] = [None, *(tile for tiles in GATE_UP_TILES.values() for tile in tiles)]
SMALL = [
    None,
    GateUpTile(16, 32, 16, 32, 2, 4),
    GateUpTile(32, 16, 0, 16, 2, 4),
]  # of what the interpreter does in little time


def check_gate_up_gemm(
    rows: int, inputs: int, width: int, activation: Activation, tile: GateUpTile | None, dtype: torch.dtype, device: str
) -> None:
    """`tile` None: the one that is chosen, or the library and the gate by itself."""
    x = random(rows, inputs, dtype=dtype, device=device, seed=5)
    weight = interleave_gate_up(random(2 * width, inputs, dtype=dtype, device=device, seed=6, scale=2 * inputs**-0.5))
    expected = fused_gate_up_reference(x.double(), weight.double(), activation)
    assert_near(fused_gate_up(x, weight, activation, tile=tile), expected, dtype)

"""Checks of the fused gate-up GEMM of a dense layer against float64 references, like those in `cases.py`."""

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
]  # small enough for the interpreter


def check_gate_up_gemm(
    rows: int, inputs: int, width: int, activation: Activation, tile: GateUpTile | None, dtype: torch.dtype, device: str
) -> None:
    """Compares `fused_gate_up` with its float64 reference.

    Args:
        tile: Tile sizes. None: those that the kernel selects, or the library GEMM with a separate activation.
    """
    x = random(rows, inputs, dtype=dtype, device=device, seed=5)
    weight = interleave_gate_up(random(2 * width, inputs, dtype=dtype, device=device, seed=6, scale=2 * inputs**-0.5))
    expected = fused_gate_up_reference(x.double(), weight.double(), activation)
    assert_near(fused_gate_up(x, weight, activation, tile=tile), expected, dtype)

"""Split of the heads of a row among programs."""

from __future__ import annotations

from runtime.kernels.triton_import import triton

TILE = 2048  # elements of a row's heads per program; more would spill registers


def heads_per_program(heads: int, dim: int, tile: int = TILE) -> int:
    """Returns how many heads of size `dim` a program of `tile` elements processes: a power of two."""
    return min(triton.next_power_of_2(heads), max(1, tile // triton.next_power_of_2(dim)))

"""How a row's heads are split among programs."""

from __future__ import annotations

from runtime.kernels.triton_import import triton

TILE = 2048  # numbers of a row's heads that a program holds, in several copies: many more would not fit its registers


def heads_together(heads: int, dim: int, tile: int = TILE) -> int:
    """How many of a row's heads of `dim` one program takes that holds `tile` numbers of them: a power of two."""
    return min(triton.next_power_of_2(heads), max(1, tile // triton.next_power_of_2(dim)))

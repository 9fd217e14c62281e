"""The rotary embedding's table of cosines and sines."""

from __future__ import annotations

import torch

from runtime.kernels.precision import wide
from runtime.layers.build import Build

GRANULE = 512  # rows are added in multiples of it


class RotaryTable:
    """[positions, rotary_dim]: cosines, then sines, of position * theta^(-2i/rotary_dim), i < rotary_dim/2.

    Angles are computed in float64 and stored in float32 (float64 for a float64 model), so that far positions are as
    exact as near ones. The table covers the model's own limit from the start and grows if a block reaches past it.
    """

    def __init__(self, build: Build, rotary_dim: int, theta: float, positions: int) -> None:
        self.rotary_dim = rotary_dim
        self.theta = theta
        self.device = build.device
        self.dtype = wide(build.dtype)
        self.table = self._make(positions)

    def cover(self, positions: int) -> torch.Tensor:
        """The table, with at least `positions` rows."""
        if positions > len(self.table):
            self.table = self._make(positions)
        return self.table

    def _make(self, positions: int) -> torch.Tensor:
        rows = -(-positions // GRANULE) * GRANULE
        steps = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64) / self.rotary_dim
        angles = torch.outer(torch.arange(rows, dtype=torch.float64), self.theta**-steps)
        return torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.device, self.dtype)

"""The rotary embedding's table of cosines and sines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from runtime.kernels.precision import wide
from runtime.layers.layer_factory import Build

GRANULE = 512  # rows are added in multiples of it


@dataclass(frozen=True)
class Yarn:
    """How a model trained on `original` positions turns heads where there are `factor` times as many (arXiv
    2309.00071): frequencies that turn more than `beta_fast` times within `original` stay, those that turn less than
    `beta_slow` times are divided by `factor`, between them is a ramp. Cosines and sines are multiplied by `magnitude`.
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0

    def slowed(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        """[n] frequencies theta^(-i/n) -> those that the table is made from."""
        n = len(frequencies)

        def place(turns: float) -> float:
            """Which of the frequencies turns so often within `original`, as a fraction of places."""
            return n * math.log(self.original / (turns * 2 * math.pi)) / math.log(theta)

        # the ends of the ramp are bounded by the head's dimensions, twice the frequencies, as the method's authors did
        first, last = max(math.floor(place(self.beta_fast)), 0), min(math.ceil(place(self.beta_slow)), 2 * n - 1)
        width = last - first or 0.001
        share = ((torch.arange(n, dtype=frequencies.dtype) - first) / width).clamp(0, 1)
        return frequencies * (1 - share) + frequencies / self.factor * share


class RotaryTable:
    """[positions, rotary_dim]: cosines, then sines, of position * theta^(-2i/span), i < rotary_dim/2, or of what `yarn`
    makes of these frequencies. `span` is rotary_dim unless another is given.

    Angles are computed in float64 and stored in float32 (float64 for a float64 model), so that far positions are as
    exact as near ones. The table covers the model's own limit from the start and grows if a block reaches past it.
    """

    def __init__(
        self, build: Build, rotary_dim: int, theta: float, positions: int, yarn: Yarn | None = None,
        span: int | None = None,
    ) -> None:  # fmt: skip
        self.rotary_dim = rotary_dim
        self.span = span or rotary_dim
        self.theta = theta
        self.yarn = yarn
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
        if self.device.type == "meta":  # of a model that is only held against its checkpoint
            return torch.empty(rows, self.rotary_dim, dtype=self.dtype, device=self.device)
        steps = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64) / self.span
        frequencies, magnitude = self.theta**-steps, 1.0
        if self.yarn is not None:
            frequencies, magnitude = self.yarn.slowed(frequencies, self.theta), self.yarn.magnitude
        angles = torch.outer(torch.arange(rows, dtype=torch.float64), frequencies)
        return (torch.cat([angles.cos(), angles.sin()], dim=-1) * magnitude).to(self.device, self.dtype)

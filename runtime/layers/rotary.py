"""Table of cosines and sines of the rotary embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from runtime.kernels.common import wide
from runtime.layers.layer_factory import LayerFactory

ROW_MULTIPLE = 512  # the number of rows is a multiple of it


@dataclass(frozen=True)
class Yarn:
    """YaRN scaling of a model trained on `original` positions to `factor` times as many (arXiv 2309.00071).

    Frequencies with more than `beta_fast` rotations within `original` are unchanged, those with fewer than `beta_slow`
    are divided by `factor`, with a ramp between. Cosines and sines are multiplied by `magnitude`.
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0

    def scale_frequencies(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        """Returns the scaled frequencies for `frequencies` [n], which are theta^(-i/n)."""
        n = len(frequencies)

        def index_of(rotations: float) -> float:
            """Returns the index i, not rounded, of the frequency with this number of rotations within `original`."""
            return n * math.log(self.original / (rotations * 2 * math.pi)) / math.log(theta)

        # the reference implementation bounds the ramp by the head's dimensions, twice the number of frequencies
        first, last = max(math.floor(index_of(self.beta_fast)), 0), min(math.ceil(index_of(self.beta_slow)), 2 * n - 1)
        width = last - first or 0.001
        ramp = ((torch.arange(n, dtype=frequencies.dtype) - first) / width).clamp(0, 1)
        return frequencies * (1 - ramp) + frequencies / self.factor * ramp


class RotaryTable:
    """Table [positions, rotary_dim] of cosines, then sines, of position * theta^(-2i/span), i < rotary_dim/2.

    `yarn` scales the frequencies and the magnitude.

    Angles are computed in float64 and stored in float32 (float64 for a float64 model), so that far positions are exact.
    The table covers the model's maximum length and grows if a block exceeds it.

    Args:
        span: rotary_dim if None.
    """

    def __init__(
        self, factory: LayerFactory, rotary_dim: int, theta: float, positions: int, yarn: Yarn | None = None,
        span: int | None = None,
    ) -> None:  # fmt: skip
        self.rotary_dim = rotary_dim
        self.span = span or rotary_dim
        self.theta = theta
        self.yarn = yarn
        self.device = factory.device
        self.dtype = wide(factory.dtype)
        self.table = self._make(positions)

    def cover(self, positions: int) -> torch.Tensor:
        """Returns the table with at least `positions` rows."""
        if positions > len(self.table):
            self.table = self._make(positions)
        return self.table

    def _make(self, positions: int) -> torch.Tensor:
        rows = -(-positions // ROW_MULTIPLE) * ROW_MULTIPLE
        if self.device.type == "meta":  # for a model that only checks a checkpoint, without values
            return torch.empty(rows, self.rotary_dim, dtype=self.dtype, device=self.device)
        steps = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64) / self.span
        frequencies, magnitude = self.theta**-steps, 1.0
        if self.yarn is not None:
            frequencies, magnitude = self.yarn.scale_frequencies(frequencies, self.theta), self.yarn.magnitude
        angles = torch.outer(torch.arange(rows, dtype=torch.float64), frequencies)
        return (torch.cat([angles.cos(), angles.sin()], dim=-1) * magnitude).to(self.device, self.dtype)

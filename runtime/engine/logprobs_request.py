"""Log-probabilities of a request's answer, each from the step that last wrote its position (docs/decoding.md)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LEAST = -9999.0  # as in ``request.engine_messages``, which the kernels' machines cannot read


class Written(NamedTuple):
    """Of the positions of a block that a step wrote."""

    at: Ints  # [n] offsets
    values: Floats  # [n] log-probability of the token that stands there now
    ids: Ints  # [n, most] the likeliest tokens, the best first
    tops: Floats  # [n, most] their log-probabilities


class Told:
    """One request's, by position: `values` [size], `ids` and `tops` [size, most]."""

    __slots__ = ("ids", "most", "tops", "values")

    def __init__(self, size: int, most: int) -> None:
        self.most = most
        self.values = np.full(size, LEAST)
        self.ids = np.zeros((size, most), dtype=np.int64)
        self.tops = np.full((size, most), LEAST)

    def write(self, start: int, written: Written) -> None:
        """What a step wrote of the block at `start`."""
        at = start + written.at
        self.values[at] = np.maximum(written.values, LEAST)
        self.ids[at] = written.ids[:, : self.most]
        self.tops[at] = np.maximum(written.tops[:, : self.most], LEAST)

    def between(self, first: int, last: int) -> tuple[list[float], list[list[int]], list[list[float]]]:
        """Of the positions [first, last): values, ids and tops."""
        here = slice(first, last)
        return self.values[here].tolist(), self.ids[here].tolist(), self.tops[here].tolist()

"""Log-probabilities of a request's answer, each from the step that last wrote its position (docs/decoding.md)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MIN_LOGPROB = -9999.0  # as in ``request.engine_messages``, which the kernels' machines cannot read


class BlockLogprobs(NamedTuple):
    """Of the positions of a block that a step wrote."""

    offsets: Ints  # [n] offsets
    values: Floats  # [n] log-probability of the token that stands there now
    top_ids: Ints  # [n, most] the likeliest tokens, the best first
    top_values: Floats  # [n, most] their log-probabilities


class LogprobTable:
    """One request's, by position: `values` [size], `top_ids` and `top_values` [size, most]."""

    __slots__ = ("num_top", "top_ids", "top_values", "values")

    def __init__(self, size: int, most: int) -> None:
        self.num_top = most
        self.values = np.full(size, MIN_LOGPROB)
        self.top_ids = np.zeros((size, most), dtype=np.int64)
        self.top_values = np.full((size, most), MIN_LOGPROB)

    def update(self, start: int, written: BlockLogprobs) -> None:
        """What a step wrote of the block at `start`."""
        at = start + written.offsets
        self.values[at] = np.maximum(written.values, MIN_LOGPROB)
        self.top_ids[at] = written.top_ids[:, : self.num_top]
        self.top_values[at] = np.maximum(written.top_values[:, : self.num_top], MIN_LOGPROB)

    def between(self, first: int, last: int) -> tuple[list[float], list[list[int]], list[list[float]]]:
        """Of the positions [first, last): values, ids and tops."""
        here = slice(first, last)
        return self.values[here].tolist(), self.top_ids[here].tolist(), self.top_values[here].tolist()

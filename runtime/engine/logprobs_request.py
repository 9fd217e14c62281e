"""Logprobs of a request's output, each from the step that last changed its position (docs/guide/decoding.md)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MIN_LOGPROB = -9999.0  # as in ``request.engine_messages``, whose dependencies may be missing here


class BlockLogprobs(NamedTuple):
    """Logprobs of the positions of a block that a step changed.

    Attributes:
        offsets: [n], offsets in the block.
        values: [n], logprobs of the current tokens.
        top_ids: [n, top], the most probable tokens in descending order.
        top_values: [n, top], their logprobs.
    """

    offsets: Ints
    values: Floats
    top_ids: Ints
    top_values: Floats


class LogprobTable:
    """Stores the logprobs of one request by position: `values` [size], `top_ids` and `top_values` [size, num_top]."""

    __slots__ = ("num_top", "top_ids", "top_values", "values")

    def __init__(self, size: int, num_top: int) -> None:
        self.num_top = num_top
        self.values = np.full(size, MIN_LOGPROB)
        self.top_ids = np.zeros((size, num_top), dtype=np.int64)
        self.top_values = np.full((size, num_top), MIN_LOGPROB)

    def update(self, start: int, logprobs: BlockLogprobs) -> None:
        """Stores the logprobs of a step for the block at position `start`."""
        at = start + logprobs.offsets
        self.values[at] = np.maximum(logprobs.values, MIN_LOGPROB)
        self.top_ids[at] = logprobs.top_ids[:, : self.num_top]
        self.top_values[at] = np.maximum(logprobs.top_values[:, : self.num_top], MIN_LOGPROB)

    def between(self, first: int, last: int) -> tuple[list[float], list[list[int]], list[list[float]]]:
        """Returns values, top ids and top values of the positions ``[first, last)``."""
        here = slice(first, last)
        return self.values[here].tolist(), self.top_ids[here].tolist(), self.top_values[here].tolist()

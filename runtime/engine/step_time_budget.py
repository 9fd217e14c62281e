"""Limits the rows of a step that tenants share, by the expected step time."""

from __future__ import annotations

import math

SHARED_STEP_SECONDS = 0.1  # target if one tenant has several requests in a step with other tenants
DECAY = 0.8  # weight of earlier steps, per step


class StepTimeEstimator:
    """Estimates rows per second from earlier steps, weighted by their size.

    On GPUs the limit is above the token budget and has no effect, as larger forwards take little longer. If even the
    smallest step is slow, as with large weights on a CPU, a step may take twice as long as that.

    Args:
        small: maximum number of rows of a step with about one request.
        seconds: target time of a shared step.
    """

    def __init__(self, small: int, seconds: float = SHARED_STEP_SECONDS) -> None:
        self.small = small
        self.seconds = seconds
        self._smallest = math.inf  # seconds of the fastest small step
        self._rows = 0.0
        self._seconds = 0.0

    def update(self, rows: int, seconds: float) -> None:
        """Adds the time of a step."""
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        if rows <= self.small and seconds < self._smallest:
            self._smallest = seconds

    def max_tokens(self, budget: int) -> int:
        """Returns the rows of a step that takes about `seconds`, at most `budget`; `budget` before the first step."""
        if not self._seconds:
            return budget
        seconds = self.seconds if math.isinf(self._smallest) else max(self.seconds, 2 * self._smallest)
        return min(budget, int(seconds * self._rows / self._seconds))

"""How long steps last, and how many rows one may have so as not to hold up others who share it."""

from __future__ import annotations

import math

SHARED_STEP_SECONDS = 0.1  # of a step in which somebody has more than one turn while others have turns too
KEEP = 0.8  # of what earlier steps told, with every step


class Pace:
    """Rows a second, learnt from the steps that ran; the large ones tell most.

    Where a larger forward costs little more (a GPU), the bound lies beyond the token budget and binds nobody. Where
    even the smallest lasts long (large weights on a CPU), a step may last twice as long as that: less saves little.

    Args:
        small: rows of a step that serves hardly more than one request.
    """

    def __init__(self, small: int, seconds: float = SHARED_STEP_SECONDS) -> None:
        self.small = small
        self.seconds = seconds
        self._smallest = math.inf  # seconds of the quickest small step
        self._rows = 0.0
        self._seconds = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """A step of so many rows lasted so long."""
        self._rows = KEEP * self._rows + rows
        self._seconds = KEEP * self._seconds + seconds
        if rows <= self.small and seconds < self._smallest:
            self._smallest = seconds

    def bound(self, budget: int) -> int:
        """The rows of a step that lasts about `seconds`; `budget` at most, and as long as nothing is known."""
        if not self._seconds:
            return budget
        seconds = self.seconds if math.isinf(self._smallest) else max(self.seconds, 2 * self._smallest)
        return min(budget, int(seconds * self._rows / self._seconds))

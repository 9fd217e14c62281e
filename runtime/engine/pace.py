"""How long steps last, and how many rows one may have so as to last no longer than is right when several share it."""

from __future__ import annotations

SHARED_STEP_SECONDS = 0.1  # of a step in which somebody has more than one turn while others have turns too
KEEP = 0.8  # of what earlier steps told, with every step


class Pace:
    """Rows a second, learnt from the steps that ran; the large ones tell most.

    Where a larger forward costs little more (a GPU), the bound lies beyond the token budget and binds nobody.
    """

    def __init__(self, seconds: float = SHARED_STEP_SECONDS) -> None:
        self.seconds = seconds
        self._rows = 0.0
        self._seconds = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """A step of so many rows lasted so long."""
        self._rows = KEEP * self._rows + rows
        self._seconds = KEEP * self._seconds + seconds

    def bound(self, budget: int) -> int:
        """The rows of a step that lasts about `seconds`; `budget` at most, and as long as nothing is known."""
        if not self._seconds:
            return budget
        return min(budget, int(self.seconds * self._rows / self._seconds))

"""When another process takes the place of one that ended, and how that one's end is told."""

from __future__ import annotations

FIRST_SECONDS, LAST_SECONDS = 0.5, 30.0  # before the next process starts; doubled with every one that ends
STEADY_SECONDS = 60.0  # one that served for so long is followed as the first was


class BackOff:
    """Of one place."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def after(self, served: float) -> float:
        """Seconds until the next one starts, after one that served for so many."""
        if served > STEADY_SECONDS:
            self._next = FIRST_SECONDS
        seconds = self._next
        self._next = min(2 * seconds, LAST_SECONDS)
        return seconds


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

"""An event loop whose clock advances only while every task waits: hours pass at once, and no test depends on speed."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Advances the clock to the next timer instead of a wait for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if events := super().select(0):
            return events
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set: nothing would ever happen")
        self.now += max(0.0, timeout)
        return []


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0 and advances by the seconds that tasks sleep. Use no real sockets and no threads with it."""

    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The running loop's time, for what takes a clock."""
    return asyncio.get_running_loop().time()

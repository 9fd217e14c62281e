"""An event loop whose clock advances only while every task waits, so that tests do not depend on the machine's speed.

Simulated hours take almost no time.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Advances the clock to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if events := super().select(0):
            return events
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set: nothing would ever happen")
        self.now += max(0.0, timeout)
        return []


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time, which begins at 0. It does not support real sockets or threads."""

    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like `asyncio.run`, in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Returns the running loop's time. Serves as the `clock` of code under test."""
    return asyncio.get_running_loop().time()


def simulated(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Makes a test of a coroutine function, which runs in simulated time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_simulated(test(*args, **kwargs))

    return run

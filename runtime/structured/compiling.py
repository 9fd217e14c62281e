"""Requests that wait for their grammars, which a thread compiles: nobody else waits with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from runtime.structured.constraint import Constraint
from runtime.structured.grammars import Grammars

T = TypeVar("T")


class Compiling(Generic[T]):
    """Whoever waits, by a name of its own."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._waiting: dict[str, tuple[T, Future[Constraint]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, name: str, who: T, text: str) -> Constraint | None:
        """The grammar's start if it is known; else `who` is given back with it by `done`."""
        known = self._grammars.known(text)
        if known is None:
            work: Callable[[], Constraint] = lambda: self._grammars.compiled(text, "structured_outputs")  # noqa: E731
            self._waiting[name] = who, self._thread.submit(work)
        return known

    def drop(self, name: str) -> T | None:
        """Who waits no longer; None if nobody of that name did."""
        found = self._waiting.pop(name, None)
        if found is None:
            return None
        found[1].cancel()
        return found[0]

    def done(self, seconds: float = 0.0) -> Iterator[tuple[T, Constraint | BaseException]]:
        """Those whose grammars are ready, or wrong, after waiting at most so long for the first."""
        if not self._waiting:
            return
        wait([future for _, future in self._waiting.values()], seconds, FIRST_COMPLETED)
        for name, (who, future) in list(self._waiting.items()):
            if future.done():
                del self._waiting[name]
                error = future.exception()
                yield who, future.result() if error is None else error

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

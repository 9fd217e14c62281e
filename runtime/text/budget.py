"""What one rendering of a chat template may take, so that neither a conversation nor a template can hold a server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 4 * 2**20  # characters that a template may write
MAX_SECONDS = 2.0  # of the rendering thread's own time, whatever else the machine does
GRACE = 0.01  # seconds by the clock on the wall that are not counted: to ask for a thread's own time is a system call
MAX_FACTOR = 10_000  # of a text or list that a template repeats

_current: ContextVar[Budget] = ContextVar("budget")


class Spent(Exception):
    """The budget is used up; the message ends a sentence that begins with "the template"."""


class Abandoned(Exception):
    """Nobody waits for this work any more."""


class Budget:
    """Counts what a rendering writes and how long it takes; `wanted` says whether anybody still waits for it."""

    def __init__(self, chars: int = MAX_CHARS, wanted: Callable[[], bool] = lambda: True) -> None:
        self._chars = chars
        self._wanted = wanted
        self._grace = time.monotonic() + GRACE
        self._end: float | None = None  # of this thread's own time, once it is looked at

    def gather(self, pieces: Iterable[str]) -> str:
        """The pieces as one text. Raises Spent or Abandoned as soon as it is too much."""
        written: list[str] = []
        length = 0
        token = _current.set(self)
        try:
            for piece in pieces:
                written.append(piece)
                length += len(piece)
                if length > self._chars:
                    raise Spent(f"writes more than {self._chars} characters")
                self.check()
        finally:
            _current.reset(token)
        return "".join(written)

    def check(self) -> None:
        if time.monotonic() > self._grace:
            now = time.thread_time()
            if self._end is None:
                self._end = now + MAX_SECONDS
            elif now > self._end:
                raise Spent(f"takes more than {MAX_SECONDS:g} s")
        if not self._wanted():
            raise Abandoned


class Watched:
    """What a loop of a template goes through, with a look at the budget before each item."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        check = _current.get().check
        for item in self._items:
            check()
            yield item

    def __len__(self) -> int:  # of ``loop.length``, which counts by itself what has no length
        return len(self._items)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which calls look at the budget, and nothing is repeated a million times."""

    intercepted_binops = frozenset({"*", "**"})

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(LookupError):  # a template's constants are worked out before it is rendered
            _current.get().check()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if max(abs(left), abs(right)) > MAX_FACTOR:
                raise SecurityError("a power of these numbers is too large")
        elif not all(isinstance(value, int | float) for value in (left, right)):
            count = right if isinstance(right, int) else left
            if isinstance(count, int) and count > MAX_FACTOR:
                raise SecurityError(f"nothing is repeated more than {MAX_FACTOR} times")
        return super().call_binop(context, operator, left, right)

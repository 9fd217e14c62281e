"""What one rendering of a chat template may take, so that neither a conversation nor a template can hold a server."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

MAX_CHARS = 4 * 2**20  # characters that a template may write, or hold in one text
MAX_BYTES = 64 * 2**20  # of all texts and lists that a rendering makes, those that it drops included
MAX_SECONDS = 2.0  # of the rendering thread's own time, whatever else the machine does
GRACE = 0.01  # seconds by the clock on the wall that are not counted: to ask for a thread's own time is a system call

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
        self._bytes = 0

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

    def charge(self, value: Any) -> None:
        """Counts a value that the rendering has made. Raises Spent beyond `MAX_BYTES`."""
        self._bytes += sys.getsizeof(value)
        if self._bytes > MAX_BYTES:
            raise Spent(f"makes more than {MAX_BYTES >> 20} MiB of texts")

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


def check() -> None:
    """Checks the current rendering's budget. A template's constants are computed before there is any."""
    with contextlib.suppress(LookupError):
        _current.get().check()


def charge(value: Any) -> None:
    """Counts a value that the current rendering has made."""
    with contextlib.suppress(LookupError):
        _current.get().charge(value)


def bounded(pieces: Iterable[str]) -> str:
    """The pieces as one text, within the time and size of the current rendering. Raises Spent beyond them."""
    written: list[str] = []
    length = 0
    for piece in pieces:
        written.append(piece)
        length += len(piece)
        if length > MAX_CHARS:
            raise Spent(f"writes more than {MAX_CHARS} characters")
        check()
    return "".join(written)

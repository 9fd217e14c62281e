"""Limits of rendering a chat template, so that neither a conversation nor a template can block a server."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

MAX_CHARS = 4 * 2**20  # characters that a template may write, or have in one string
MAX_BYTES = 64 * 2**20  # of all strings and lists that a rendering creates, including temporary ones
MAX_SECONDS = 2.0  # CPU time of the rendering thread
GRACE = 0.01  # seconds of wall time without a check: reading a thread's CPU time is a system call

_current: ContextVar[RenderBudget] = ContextVar("budget")


class BudgetExceeded(Exception):
    """A limit is exceeded. The message continues a sentence that begins with "the template"."""


class Cancelled(Exception):
    """The client of this work is gone."""


class RenderBudget:
    """Budget of one rendering: written characters, created bytes and CPU time.

    Args:
        chars: Maximum number of written characters.
        is_needed: Returns False once the client is gone.
    """

    def __init__(self, chars: int = MAX_CHARS, is_needed: Callable[[], bool] = lambda: True) -> None:
        self._chars = chars
        self._is_needed = is_needed
        self._grace = time.monotonic() + GRACE
        self._end: float | None = None  # CPU time of this thread, set by the first check
        self._bytes = 0

    def gather(self, pieces: Iterable[str]) -> str:
        """Joins the pieces. Raises BudgetExceeded or Cancelled as soon as a limit is exceeded."""
        written: list[str] = []
        length = 0
        token = _current.set(self)
        try:
            for piece in pieces:
                written.append(piece)
                length += len(piece)
                if length > self._chars:
                    raise BudgetExceeded(f"writes more than {self._chars} characters")
                self.check()
        finally:
            _current.reset(token)
        return "".join(written)

    def charge(self, value: Any) -> None:
        """Counts a value that the rendering has created. Raises BudgetExceeded beyond `MAX_BYTES`."""
        self._bytes += sys.getsizeof(value)
        if self._bytes > MAX_BYTES:
            raise BudgetExceeded(f"makes more than {MAX_BYTES >> 20} MiB of texts")

    def check(self) -> None:
        if time.monotonic() > self._grace:
            now = time.thread_time()
            if self._end is None:
                self._end = now + MAX_SECONDS
            elif now > self._end:
                raise BudgetExceeded(f"takes more than {MAX_SECONDS:g} s")
        if not self._is_needed():
            raise Cancelled


class CheckedIterable:
    """Iterable of a template's loop that checks the budget before each item."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        check = _current.get().check
        for item in self._items:
            check()
            yield item

    def __len__(self) -> int:  # for ``loop.length``, which counts items itself if there is no length
        return len(self._items)


def check() -> None:
    """Checks the current rendering's budget. Constants of a template are computed before there is one."""
    with contextlib.suppress(LookupError):
        _current.get().check()


def charge(value: Any) -> None:
    """Counts a value that the current rendering has created."""
    with contextlib.suppress(LookupError):
        _current.get().charge(value)


def join_bounded(pieces: Iterable[str]) -> str:
    """Joins the pieces within the limits of the current rendering. Raises BudgetExceeded."""
    written: list[str] = []
    length = 0
    for piece in pieces:
        written.append(piece)
        length += len(piece)
        if length > MAX_CHARS:
            raise BudgetExceeded(f"writes more than {MAX_CHARS} characters")
        check()
    return "".join(written)

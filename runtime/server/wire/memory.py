"""Giving memory back to the system once an attack is over: malloc keeps what was freed among what is in use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable

GROWN = 8 * 2**20  # bytes of memory beyond the least there ever was
QUIET = 3.0  # seconds in which the memory has not grown
OFTEN = 10.0  # seconds between two times: one takes some 10 ms for each 100 MB that it looks through
SELDOM = 640.0  # while it gives nothing back, for what there is is in use, it is tried twice as seldom each time
_ARENA_MAX = -8  # mallopt's M_ARENA_MAX
STEP = 2**20  # bytes: less is no growth


def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's; other C libraries have none, and keep less."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def keep_together() -> None:
    """Before there are threads: let them all take memory from one place, which is given back as a whole (glibc's)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_ARENA_MAX, 1)


def _resident() -> int:
    """Bytes of memory that the process has; 0 where nobody tells (not Linux)."""
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class Trimmer:
    """Looks now and then how much memory there is, and trims once it has grown and nothing much happens any more.

    Whatever made it grow counts: connections, parsing, what threads encoded.
    """

    def __init__(
        self,
        resident: Callable[[], int] = _resident,
        clock: Callable[[], float] = time.monotonic,
        trim: Callable[[int], int] | None = None,
    ) -> None:
        self.resident = resident
        self.clock = clock
        self.trim = trim or _malloc_trim()
        self.least = 0  # bytes that there ever were
        self.last = 0  # bytes, at the last look
        self.calm_since = 0.0
        self.trimmed = -OFTEN
        self.wait = OFTEN

    def look(self, busy: bool) -> None:
        """`busy`: many requests are being answered, which must not wait for this."""
        now, resident = self.clock(), self.resident()
        self.least = min(self.least or resident, resident)
        if resident > self.last + STEP:
            self.wait = OFTEN
        if busy or resident > self.last + STEP:
            self.calm_since = now
        self.last = resident
        if now - self.calm_since < QUIET or now - self.trimmed < self.wait or resident - self.least < GROWN:
            return
        self.trimmed = now
        if self.trim is not None:
            self.trim(0)
        self.last = self.resident()
        self.wait = OFTEN if resident - self.last > STEP else min(2 * self.wait, SELDOM)

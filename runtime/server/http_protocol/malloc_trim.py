"""Returns freed memory to the system after a load peak. glibc's malloc keeps it between allocations in use.

No environment variable of glibc does this: MALLOC_TRIM_THRESHOLD_ concerns only the end of the heap.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Callable

MIN_GROWTH = 8 * 2**20  # bytes above the smallest size so far; less is not worth a trim
STABLE_SECONDS = 3.0  # without growth and load before a trim
MIN_INTERVAL = 10.0  # seconds between two trims: one takes some 10 ms per 100 MB
MAX_INTERVAL = 640.0  # the interval doubles up to this while trims return nothing
_ARENA_MAX = -8  # mallopt's M_ARENA_MAX
STEP = 2**20  # bytes: smaller differences are neither growth nor success


def use_one_arena() -> None:
    """Make all threads allocate from one arena (glibc). Call it before threads start."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_ARENA_MAX, 1)


def _resident_bytes() -> int:
    """Resident memory of the process; 0 on systems other than Linux."""
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class MallocTrimmer:
    """Trims when resident memory has grown, whatever caused it, and the process is idle again."""

    def __init__(self) -> None:
        self.resident = _resident_bytes
        self.clock = time.monotonic
        # other C libraries lack it, and retain less
        self.trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self.collect: Callable[[], int] = gc.collect
        self.min_resident = 0  # bytes, since the start
        self.last_resident = 0  # bytes, at the last check
        self.stable_since = 0.0
        self.last_trim = -MIN_INTERVAL
        self.interval = MIN_INTERVAL

    def check(self, busy: bool) -> None:
        """Trim if it is time to.

        Args:
            busy: Many requests are being answered, which a trim would delay.
        """
        now, resident = self.clock(), self.resident()
        self.min_resident = min(self.min_resident or resident, resident)
        grows = resident > self.last_resident + STEP
        if grows:
            self.interval = MIN_INTERVAL
        if busy or grows:
            self.stable_since = now
        self.last_resident = resident
        stable = now - self.stable_since >= STABLE_SECONDS
        if not stable or now - self.last_trim < self.interval or resident - self.min_resident < MIN_GROWTH:
            return
        self.last_trim = now
        self.collect()  # collections depend on allocations, so an idle process would keep reference cycles for hours
        if self.trim is not None:
            self.trim(0)
        self.last_resident = self.resident()
        returned = resident - self.last_resident > STEP
        self.interval = MIN_INTERVAL if returned else min(2 * self.interval, MAX_INTERVAL)

"""Giving memory back to the system once a crowd has gone: malloc keeps what was freed between what is still in use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

MUCH = 8 * 2**20  # bytes
MANY = 256  # connections


def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's; other C libraries have none, and keep less."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


class Trimmer:
    """Told now and then how much is held, trims once it was much and is little again."""

    def __init__(self) -> None:
        self.trim = _malloc_trim()
        self.most_held = 0
        self.most_open = 0

    def look(self, held: int, open_: int) -> None:
        self.most_held, self.most_open = max(self.most_held, held), max(self.most_open, open_)
        was = self.most_held > MUCH or self.most_open > MANY
        if was and held <= self.most_held // 4 and open_ <= self.most_open // 4:
            self.most_held, self.most_open = held, open_
            if self.trim is not None:
                self.trim(0)

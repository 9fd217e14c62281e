"""Who is answered next: a probe on a new connection at once, of all others a few in each turn of the event loop.

A turn in which hundreds of requests begin is one in which nothing else happens, and a probe takes several turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

A_TURN = 4  # requests that begin in one; fewer make a probe's usual wait shorter, not its longest


class Turns:
    """Calls what it is given, in order, soon."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.begun = 0  # in this turn
        self.counting = False

    def take(self, begin: Callable[[], None], at_once: bool) -> None:
        if at_once:
            begin()
            return
        self.waiting.append(begin)
        self._begin()

    def _begin(self) -> None:
        while self.waiting and self.begun < A_TURN:
            self.begun += 1
            self.waiting.popleft()()
        if not self.counting:
            self.counting = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.counting = False
        if self.begun:
            self.begun = 0
            self._begin()

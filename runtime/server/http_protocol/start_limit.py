"""Limits how many requests start per event loop iteration.

If hundreds started in one iteration, nothing else would happen in it, and a probe needs several iterations.
"""

from __future__ import annotations

import asyncio
from collections import deque

STARTS_PER_ITERATION = 4  # a smaller number shortens the median of a probe's time, not its maximum


class StartLimit:
    """Delays requests, in the order of their arrival."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.started = 0  # in this iteration
        self.scheduled = False

    async def wait(self) -> None:
        """Return when the request may start."""
        if self.waiting or self.started >= STARTS_PER_ITERATION:
            future = asyncio.get_running_loop().create_future()
            self.waiting.append(future)
            await future
            return
        self._count()

    def _count(self) -> None:
        self.started += 1
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self._next_iteration)

    def _next_iteration(self) -> None:
        self.scheduled = False
        self.started = 0
        while self.waiting and self.started < STARTS_PER_ITERATION:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._count()

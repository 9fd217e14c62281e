"""A line before something that serves one at a time: the shortest goes first, and what waits is limited."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runtime.errors import RequestError


class Line:
    """Of what waits, the shortest goes first (within a factor of two, the first). Cancelled, a waiter is gone."""

    def __init__(self, most: int, what: str) -> None:
        """`most`: how much may wait, together, in the unit of `enter`. `what`: how a refusal calls those that wait."""
        self._most, self._what = most, what
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._held = 0  # of what waits
        self._busy = False

    async def enter(self, size: int) -> None:
        """Wait for one's turn; `leave` ends it. Raises RequestError 429 where too much waits."""
        if not self._busy:
            self._busy = True
            return
        if self._held + size > self._most:
            raise RequestError(f"too many {self._what} at the moment; retry later", status=429, code="queue_full")
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size.bit_length(), next(self._numbers), turn))
        self._held += size
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = [entry for entry in self._waiting if entry[2] is not turn]
                heapq.heapify(self._waiting)
            else:
                self.leave()  # it was this one's turn
            raise
        finally:
            self._held -= size

    def leave(self) -> None:
        """The turn goes to the next."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():  # a waiter that was cancelled stays in the line until it runs
                turn.set_result(None)
                return
        self._busy = False

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """From `enter` to `leave`."""
        await self.enter(size)
        try:
            yield
        finally:
            self.leave()

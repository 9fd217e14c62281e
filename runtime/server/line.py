"""A line before something that serves one at a time: the shortest goes first, and what waits is limited.

Where keys tell those who wait apart, nobody can fill it for the others: who comes when it is full takes the place of
the last who came of the owner that holds most of it, unless that is more than a fair share for the newcomer itself.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from runtime.errors import RequestError


@dataclass(order=True)
class Waiter:
    """In the order of turns: the shortest, within a factor of two the first."""

    magnitude: int
    number: int
    size: int = field(compare=False)
    owner: str = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class Line:
    """Cancelled, a waiter is gone."""

    def __init__(self, most: int, what: str) -> None:
        """`most`: how much may wait, together, in the unit of `enter`. `what`: how a refusal calls those that wait."""
        self._most, self._what = most, what
        self._waiting: list[Waiter] = []
        self._numbers = itertools.count()
        self._held: Counter[str] = Counter()  # of what waits, by owner
        self._busy = False

    async def enter(self, size: int, owner: str = "") -> None:
        """Wait for one's turn; `leave` ends it. Raises RequestError 429 where too much waits, at once or later."""
        if not self._busy:
            self._busy = True
            return
        self._make_room(size, owner)
        turn = asyncio.get_running_loop().create_future()
        waiter = Waiter(size.bit_length(), next(self._numbers), size, owner, turn)
        heapq.heappush(self._waiting, waiter)
        self._held[owner] += size
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if waiter in self._waiting:
                    self._remove(waiter)
            elif turn.exception() is None:
                self.leave()  # it was this one's turn
            raise
        finally:
            del waiter, turn  # a refusal's frames would hold the refusal, and the body, in a circle

    def leave(self) -> None:
        """The turn goes to the next."""
        while self._waiting:
            waiter = heapq.heappop(self._waiting)
            self._forget(waiter)
            if not waiter.turn.done():  # a waiter that was cancelled stays in the line until it runs
                waiter.turn.set_result(None)
                return
        self._busy = False

    @asynccontextmanager
    async def turn(self, size: int, owner: str = "") -> AsyncIterator[None]:
        """From `enter` to `leave`."""
        await self.enter(size, owner)
        try:
            yield
        finally:
            self.leave()

    def _make_room(self, size: int, owner: str) -> None:
        while self._held.total() + size > self._most:
            greediest, held = self._held.most_common(1)[0] if self._held else ("", 0)
            if held <= self._held[owner] + size:
                raise self._too_much()
            last = max((w for w in self._waiting if w.owner == greediest), key=lambda w: w.number)
            self._remove(last)
            if not last.turn.done():
                last.turn.set_exception(self._too_much())

    def _too_much(self) -> RequestError:
        return RequestError(f"too many {self._what} at the moment; retry later", status=429, code="queue_full")

    def _remove(self, waiter: Waiter) -> None:
        self._waiting.remove(waiter)
        heapq.heapify(self._waiting)
        self._forget(waiter)

    def _forget(self, waiter: Waiter) -> None:
        self._held[waiter.owner] -= waiter.size
        if not self._held[waiter.owner]:
            del self._held[waiter.owner]

"""Connections as they are accepted, handed to the process that has fewest.

They are accepted in one place because processes that all listen would be dealt them by chance, and one that is started
anew would lose those that wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from runtime.server.http_protocol.limits import BACKLOG

AT_ONCE = 64  # accepted in one turn of the loop
AGAIN = 0.02  # seconds after which one is tried again for which no process had room
LAST_TRIES = 100  # of these at the end: processes that hang never have room


class Taker(Protocol):
    """A process that takes connections. `handed`: how many it was given so far."""

    handed: int

    def open(self) -> int:
        """How many of them it has still."""

    def take(self, connection: socket.socket) -> bool:
        """Hand it one more; whether it had room."""


class Dealer:
    """`takers`: those that take some now."""

    def __init__(self, listener: socket.socket, takers: Callable[[], Sequence[Taker]]) -> None:
        listener.setblocking(False)
        self.listener = listener
        self.takers = takers
        self.kept: socket.socket | None = None  # accepted, and nobody had room
        self.short = False  # of descriptors
        self.closed = False

    def deal(self) -> None:
        """Hand out who waits, and all who come from now on. To be called whenever a process begins to take some."""
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.listener.fileno())
        if not self.takers():
            return
        for _ in range(AT_ONCE):
            if not self._one():
                break
        if self.kept is not None or self.short:
            loop.call_later(AGAIN, self.deal)
        else:
            loop.add_reader(self.listener.fileno(), self.deal)

    async def close(self) -> None:
        """Hand out whom the kernel has accepted for us, and nobody after them: never more than it holds at a time,
        however many come meanwhile."""
        self.closed = True
        asyncio.get_running_loop().remove_reader(self.listener.fileno())
        dealt = tried = 0
        while dealt < BACKLOG and tried < LAST_TRIES and self.takers():
            if self._one():
                dealt += 1
                if dealt % AT_ONCE == 0:
                    await asyncio.sleep(0)
            elif self.kept is None and not self.short:
                break
            else:
                tried += 1
                await asyncio.sleep(AGAIN)
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        if self.kept is not None:
            self.kept.close()

    def _one(self) -> bool:
        """Hand out one; False where nobody waits, and where there was no room for who did, who is kept."""
        connection, self.kept = self.kept, None
        if connection is None:
            try:
                self.short = False
                connection, _ = self.listener.accept()
            except (BlockingIOError, ConnectionError):  # nobody waits, or has gone already
                return False
            except OSError:
                self.short = True
                return False
        fewest_first = sorted(self.takers(), key=lambda taker: (taker.open(), taker.handed))
        if any(taker.take(connection) for taker in fewest_first):
            connection.close()
            return True
        self.kept = connection
        return False

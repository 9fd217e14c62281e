"""All connections of a server: how many there may be, which one gives way to a new one, and who has taken too long.

One look at every connection a second takes the place of timers of each: a connection knows its phase and since when.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from runtime.server import logs
from runtime.server.metrics import RequestMetrics
from runtime.server.wire import refusal
from runtime.server.wire.departure import departed
from runtime.server.wire.limits import READ_BYTES, Limits
from runtime.server.wire.memory import Trimmer
from runtime.server.wire.turns import Turns

if TYPE_CHECKING:
    from runtime.server.wire.connection import Connection

log = logging.getLogger("unmask.wire")

FEW = 8  # requests being answered: for no more than these the loop may stop some milliseconds to give memory back
SMALL = 4096  # bytes: who holds less gives nothing worth having back


class Phase(Enum):
    """What a connection waits for. In this order connections give way: to a new one those before ANSWER."""

    LINGER = "linger"  # its refused client reads the answer
    HEAD = "head"  # the first request, or the rest of a head
    IDLE = "idle"  # the next request
    BODY = "body"  # the rest of a body
    CLOSING = "closing"  # its client takes the end of the last answer
    ANSWER = "answer"  # the application


TAKING = (Phase.IDLE, Phase.CLOSING, Phase.ANSWER)  # in which an answer may still be on its way
_RANK = {phase: rank for rank, phase in enumerate(Phase)}


def _turn(connection: Connection) -> tuple[int, float]:
    """Who is to give way: the smallest first. An answer that a client has not taken whole is the last of it, also where
    another request may follow; of those, the one goes first that has not moved for longest."""
    rank = _RANK[connection.phase]
    if connection.phase in TAKING and connection.out.unsent():
        return max(rank, _RANK[Phase.CLOSING]), connection.out.moved
    return rank, connection.since


class Roster:
    """All connections, and the bytes that they hold together."""

    def __init__(
        self,
        limits: Limits,
        observed: RequestMetrics,
        ended: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A roster without connections.

        Args:
            limits: The limits of connections.
            observed: Counters of connections and of why they ended.
            ended: Called for each connection that has ended.
            clock: Seconds; all limits of time are measured with it.
        """
        self.limits = limits
        self.clock = clock
        self.ended = ended or (lambda: None)
        self.open: set[Connection] = set()
        self.spares: set[Connection] = set()  # of these, who came when all others were at work: for probes
        self.waiting: dict[Phase, OrderedDict[Connection, None]] = {
            phase: OrderedDict() for phase in Phase if phase is not Phase.ANSWER
        }  # each longest first
        self.held = 0  # bytes, unread answers excepted
        self.relieving = False
        self.trimmer = Trimmer()
        self.turns = Turns()
        self.buffer = memoryview(bytearray(READ_BYTES))  # what was read is parsed or copied at once, so one is enough
        self.swept = 0.0
        self.given_up = observed.closed_by_server
        observed.connections.set_function(lambda: len(self.open))
        observed.max_connections.set(limits.connections)

    def enter(self, connection: Connection) -> None:
        """A new connection. One that waits gives way where there are too many, else the new one is a spare.

        Spares have places of their own, so that probes do not push each other out: one gives way only to a spare, and
        only when those places are taken too.
        """
        self.open.add(connection)
        if self.crowded() and (longest := self._longest_waiting(spare=False)) is not None:
            self.give_up(longest, "gave_way")
        if not self.crowded():
            return
        if len(self.spares) >= self.limits.spare:
            longest = self._longest_waiting(spare=True)
            self.give_up(longest or connection, "no_room" if longest is None else "gave_way")
        if connection in self.open:
            self.spares.add(connection)

    def _longest_waiting(self, spare: bool) -> Connection | None:
        now = self.clock()
        for phase, waiting in self.waiting.items():
            for connection in waiting:
                if phase is Phase.BODY and now - connection.since < self.limits.upload_seconds:
                    break  # and so are those after it
                takes = phase in TAKING and now - connection.out.moved < self.limits.taking_seconds
                if (connection in self.spares) is spare and not (takes and connection.out.unsent()):
                    return connection
        return None

    def crowded(self) -> bool:
        """Whether more connections are open than may be, spares excepted."""
        return len(self.open) - len(self.spares) > self.limits.connections

    def may_ask(self, connection: Connection, path: str) -> bool:
        """Whether it may ask for this: a spare only for what probes do, until there is room for one more."""
        if connection in self.spares and len(self.open) - len(self.spares) < self.limits.connections:
            self.spares.remove(connection)
        return connection not in self.spares or path in self.limits.open_paths

    def leave(self, connection: Connection) -> None:
        self.open.discard(connection)
        self.spares.discard(connection)
        self._forget(connection)
        self.weigh(connection, 0)

    def move(self, connection: Connection, phase: Phase) -> None:
        """A connection begins to wait for something else."""
        self._forget(connection)
        connection.phase, connection.since = phase, self.clock()
        if phase is not Phase.ANSWER and connection in self.open:
            self.waiting[phase][connection] = None

    def _forget(self, connection: Connection) -> None:
        if connection.phase is not Phase.ANSWER:
            self.waiting[connection.phase].pop(connection, None)

    def weigh(self, connection: Connection, held: int) -> None:
        """A connection holds so many bytes now."""
        self.held += held - connection.held
        connection.held = held
        if self.held > self.limits.held_bytes and not self.relieving:
            self._relieve(self.held)

    def _relieve(self, held: int) -> None:
        """Too much is held: those that hold something give way, till an eighth is free: who is cut off together comes
        back together, and a turn of the loop must bear it.

        In the order of their phases, and of each the one that has waited longest: answers under way are the last.
        """
        holders = [(c.held + c.out.unsent(), c) for c in self.open]
        self.relieving = True  # those that go weigh less, which is no reason to begin anew
        try:
            for size, connection in sorted((h for h in holders if h[0] > SMALL), key=lambda h: _turn(h[1])):
                if held <= self.limits.held_bytes * 7 // 8:
                    break
                held -= size
                if connection.phase is Phase.BODY:
                    connection.refuse(refusal.no_room("holds as many unfinished requests as it may", "memory"))
                else:
                    self.give_up(connection, "memory")
        finally:
            self.relieving = False

    def give_up(self, connection: Connection, reason: str) -> None:
        """Cut a connection off: nothing that is under way on it ends."""
        self.note(connection, reason)
        connection.abort()
        self.leave(connection)

    def note(self, connection: Connection, reason: str) -> None:
        self.given_up.labels(reason).inc()
        log.info("connection of %s ended by the server: %s", connection.client or "a client", reason)

    def sweep(self) -> None:
        """Give up who has taken too long. To be called often; it looks at the connections once a second."""
        now = self.clock()
        if now - self.swept < self.limits.sweep_seconds:
            return
        self.swept = now
        unsent = 0
        for connection in list(self.open):
            self._check(connection, now)
            unsent += connection.out.unsent()
        if self.held + unsent > self.limits.held_bytes:
            self._relieve(self.held + unsent)
        self.trimmer.look(busy=sum(connection.current is not None for connection in self.open) > FEW)
        logs.rate_limiter.report_dropped()

    def _check(self, connection: Connection, now: float) -> None:
        limits, seconds = self.limits, now - connection.since
        if connection.out.stalled(now) > limits.stall_seconds:
            self.give_up(connection, "stalled")
            return
        if connection.paused and not connection.closing and departed(connection.transport):
            connection.abort()
            return
        match connection.phase:
            case Phase.HEAD if seconds > limits.head_seconds:
                self.note(connection, "slow_head")
                connection.close()
            case Phase.IDLE if seconds > limits.idle_seconds:
                connection.close()
            case Phase.BODY if seconds > limits.body_seconds:
                connection.refuse(refusal.body_too_slow(limits.body_seconds))
            case Phase.LINGER if connection.out.unsent():
                connection.since = connection.heard = now  # its client is still taking the answer
            case Phase.LINGER if seconds > limits.linger_seconds or now - connection.heard > limits.quiet_seconds:
                connection.abort()

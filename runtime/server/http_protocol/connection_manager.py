"""Manages all connections: their number, their memory and their timeouts.

All connections are checked once per second instead of having timers: each knows its phase and since when it has it.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import OrderedDict, deque
from collections.abc import Callable

from runtime.server import logs
from runtime.server.http_protocol import error_responses
from runtime.server.http_protocol.connection import Connection, Phase
from runtime.server.http_protocol.limits import Limits
from runtime.server.http_protocol.malloc_trim import MallocTrimmer
from runtime.server.metrics import RequestMetrics

_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)  # Linux: the peer has sent its last byte, whether or not it was read


def has_disconnected(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed its side. Always False on systems other than Linux: there, reading detects it."""
    socket = transport.get_extra_info("socket")
    if not _PEER_CLOSED or socket is None or socket.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket.fileno(), _PEER_CLOSED)
    return bool(poll.poll(0))


STARTS_PER_ITERATION = 4  # a smaller number shortens the median of a probe's time, not its maximum


class StartLimit:
    """Delays requests, in the order of their arrival."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.started = 0  # in this iteration; `_next_iteration` is scheduled by the first

    async def wait(self) -> None:
        """Return when the request may start."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self._start()
        await future

    def _start(self) -> None:
        while self.waiting and self.started < STARTS_PER_ITERATION:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                self.started += 1
                if self.started == 1:
                    asyncio.get_running_loop().call_soon(self._next_iteration)

    def _next_iteration(self) -> None:
        self.started = 0
        self._start()


log = logging.getLogger("unmask.wire")

MAX_IDLE_REQUESTS = 8  # with more, the event loop must not stop for the milliseconds of a trim
MIN_EVICTED_BYTES = 4096  # evicting a connection that holds less frees too little memory


_SENDING = (Phase.IDLE, Phase.CLOSING, Phase.ANSWER)  # phases in which a response may be unsent


def eviction_key(connection: Connection) -> tuple[int, float]:
    """Sort key: the smallest is evicted first.

    Connections with an unsent response rank with CLOSING, also if they may bring another request. Among these, the one
    without progress for the longest time goes first.
    """
    if connection.phase in _SENDING and connection.transport.unsent():
        return max(connection.phase, Phase.CLOSING), connection.transport.progressed
    return connection.phase, connection.since


class ConnectionManager:
    """All connections of a process."""

    def __init__(self, limits: Limits, observed: RequestMetrics, clock: Callable[[], float]) -> None:
        """Creates a manager without connections.

        Args:
            limits: The limits of connections.
            observed: Metrics of connections.
            clock: Returns seconds. All timeouts but the idle one are measured with it.
        """
        self.limits = limits
        self.clock = clock
        self.open: set[Connection] = set()
        self.probes: set[Connection] = set()  # of `open`, those in probe slots
        self.waiting: dict[Phase, OrderedDict[Connection, None]] = {
            phase: OrderedDict() for phase in Phase if phase is not Phase.ANSWER
        }  # in the order of `since`
        self.buffered = 0  # bytes of all connections, without unsent responses
        self.start_limit = StartLimit()
        self.trimmer = MallocTrimmer()
        self.last_check = 0.0
        self.closed_by_server = observed.closed_by_server
        self.num_open = observed.connections
        observed.max_connections.set(limits.connections)

    def add(self, connection: Connection) -> None:
        """Register a new connection.

        If there are too many, another one gives way: it is evicted, or moved to a probe slot if its request may be on
        its way, as it may be a probe. If none can give way, the new one gets a probe slot. A connection in a probe slot
        is evicted only if all slots are in use and another connection needs one.
        """
        self.open.add(connection)
        self.num_open.set(len(self.open))
        if self._at_capacity() and (victim := self._eviction_candidate()) is not None:
            if self._is_expected(victim, self.clock()):
                self._use_probe_slot(victim)
            else:
                self.evict(victim, "gave_way")
        if self._at_capacity():
            self._use_probe_slot(connection)

    def _use_probe_slot(self, connection: Connection) -> None:
        if len(self.probes) >= self.limits.probe_slots:
            victim = self._probe_slot_candidate()
            self.evict(victim or connection, "no_room" if victim is None else "gave_way")
        if connection in self.open:
            self.probes.add(connection)

    def _eviction_candidate(self) -> Connection | None:
        """Returns the connection outside the probe slots that is evicted first."""
        now = self.clock()
        for phase, waiting in self.waiting.items():
            for connection in waiting:
                if phase is Phase.BODY and now - connection.since < self.limits.upload_seconds:
                    break  # the following ones are newer
                if connection not in self.probes and self._may_give_way(connection, now):
                    return connection
        return None

    def _probe_slot_candidate(self) -> Connection | None:
        """Returns the connection in a probe slot that is evicted first. Those that may be probes are the last."""
        now = self.clock()
        candidates = [connection for connection in self.probes if self._may_give_way(connection, now)]
        return min(candidates, key=lambda c: (self._is_expected(c, now), c.phase, c.since), default=None)

    def _may_give_way(self, connection: Connection, now: float) -> bool:
        phase, out = connection.phase, connection.transport
        if phase is Phase.ANSWER or (phase is Phase.BODY and now - connection.since < self.limits.upload_seconds):
            return False
        progresses = phase in _SENDING and now - out.progressed < self.limits.progress_seconds
        return not (progresses and out.unsent())

    def _is_expected(self, connection: Connection, now: float) -> bool:
        """Whether the first request of a new connection may be on its way, or may not have been read yet."""
        silent = connection.phase is Phase.HEAD and connection.is_new and not connection.unparsed
        return silent and now - connection.since < self.limits.arrival_seconds

    def _at_capacity(self) -> bool:
        return len(self.open) - len(self.probes) > self.limits.connections

    def may_handle(self, connection: Connection, path: str) -> bool:
        """Whether a connection may request `path`. One in a probe slot leaves the slot as soon as there is capacity."""
        if connection in self.probes and len(self.open) - len(self.probes) < self.limits.connections:
            self.probes.remove(connection)
        return connection not in self.probes or path in self.limits.probe_paths

    def remove(self, connection: Connection) -> None:
        """Unregister a connection that has been lost or evicted."""
        self.open.discard(connection)
        self.num_open.set(len(self.open))
        self.probes.discard(connection)
        self._leave_phase(connection)
        self.set_buffered(connection, 0)

    def set_phase(self, connection: Connection, phase: Phase) -> None:
        self._leave_phase(connection)
        connection.phase, connection.since = phase, self.clock()
        if phase is not Phase.ANSWER and connection in self.open:
            self.waiting[phase][connection] = None

    def _leave_phase(self, connection: Connection) -> None:
        if connection.phase is not Phase.ANSWER:
            self.waiting[connection.phase].pop(connection, None)

    def set_buffered(self, connection: Connection, size: int) -> None:
        """Set the bytes that a connection buffers. If all together grow beyond the limit, evict connections."""
        grows = size > connection.buffered
        self.buffered += size - connection.buffered
        connection.buffered = size
        if grows and self.buffered > self.limits.buffered_bytes:
            self._evict_for_memory(self.buffered)

    def _evict_for_memory(self, buffered: int) -> None:
        """Evict until an eighth of the limit is free: clients of evicted connections reconnect at the same time."""
        sizes = {c: size for c in self.open if (size := c.buffered + c.transport.unsent()) > MIN_EVICTED_BYTES}
        for connection in sorted(sizes, key=eviction_key):
            if buffered <= self.limits.buffered_bytes * 7 // 8:
                break
            buffered -= sizes[connection]
            if connection.phase is Phase.BODY:
                rejection = error_responses.overloaded("holds as many unfinished requests as it may", "memory")
                connection.reject(rejection)
            else:
                self.evict(connection, "memory")

    def evict(self, connection: Connection, reason: str) -> None:
        """Abort a connection, whatever it is doing."""
        self.count_closed(connection, reason)
        connection.transport.abort()
        self.remove(connection)

    def count_closed(self, connection: Connection, reason: str) -> None:
        """Count and log that the server ends a connection."""
        self.closed_by_server.labels(reason).inc()
        log.info("Closed connection from %s: %s", connection.client or "an unknown address", reason)

    def check_timeouts(self) -> None:
        """Close connections that have exceeded a timeout. Call it often; it checks once per second."""
        now = self.clock()
        if now - self.last_check < self.limits.check_seconds:
            return
        self.last_check = now
        unsent = 0
        for connection in list(self.open):
            self._check(connection, now)
            unsent += connection.transport.unsent()
        if self.buffered + unsent > self.limits.buffered_bytes:
            self._evict_for_memory(self.buffered + unsent)
        self.trimmer.check(busy=sum(connection.is_answering for connection in self.open) > MAX_IDLE_REQUESTS)
        logs.rate_limiter.report_dropped()

    def _check(self, connection: Connection, now: float) -> None:
        limits, transport, seconds = self.limits, connection.transport, now - connection.since
        if transport.stalled_seconds(now) > limits.stall_seconds:
            self.evict(connection, "stalled")
            return
        if connection.socket_paused and not transport.is_closing() and has_disconnected(transport):
            transport.abort()  # a disconnect is not detected while reading is paused
            return
        match connection.phase:
            case Phase.HEAD if seconds > limits.head_seconds:
                self.count_closed(connection, "slow_head")
                transport.close()
            case Phase.BODY if seconds > limits.body_seconds:
                connection.reject(error_responses.body_timeout(limits.body_seconds))
            case Phase.DRAINING if transport.unsent():
                connection.since = connection.last_discard = now  # the client is still receiving the response
            case Phase.DRAINING:
                if seconds > limits.drain_seconds or now - connection.last_discard > limits.quiet_seconds:
                    transport.abort()

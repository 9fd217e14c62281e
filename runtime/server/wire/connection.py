"""One connection: bytes in, requests answered one after the other, no more of either than the limits allow."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from runtime.server.wire import refusal
from runtime.server.wire.exchange import Exchange
from runtime.server.wire.listener import unmapped
from runtime.server.wire.outflow import Outflow
from runtime.server.wire.parsing import Head, RequestParser
from runtime.server.wire.refusal import Refused
from runtime.server.wire.roster import Phase, Roster

Port = TypeVar("Port")


def _unmapped(address: tuple[str, Port] | None) -> tuple[str, Port] | None:
    """An IPv4 client of a listener for both families is logged by its IPv4 address."""
    return None if address is None else (unmapped(address[0]), address[1])


class Connection(asyncio.BufferedProtocol):
    """To uvicorn a protocol, to its exchanges transport and flow control.

    What was read is parsed as far as requests may wait here; the socket is not read again before the rest is parsed.

    Attributes:
        phase, since: what it waits for, and since when; the roster sets them.
        held: bytes that it holds; the roster's.
        current: the request that is being answered.
        queue: those that wait for its answer.
        reading: the one whose body has not ended.
        last_word: the answer that ends the connection, once those before it are given.
        unread: something came, or may come, that nobody will read.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        roster: Roster,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.app = config.loaded_app
        self.server_state = server_state
        self.app_state = app_state
        self.roster = roster
        self.limits = roster.limits
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

        self.phase = Phase.HEAD
        self.since = 0.0
        self.held = 0
        self.fresh = True  # no request has come
        self.closing = self.paused = False
        self.parser = RequestParser(self.limits, self)
        self.pending = b""  # read and not parsed
        self.current: Exchange | None = None
        self.queue: list[Exchange] = []  # a few; a deque takes a kilobyte even empty
        self.reading: Exchange | None = None
        self.last_word: Refused | None = None
        self.unread = False
        self.discarded, self.heard = 0, 0.0  # bytes that were thrown away, and when the last of them came
        self.out = Outflow(self.loop.call_soon, roster.clock)

    # -- the transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.out.open(self.transport)
        self.server = _unmapped(get_local_addr(self.transport))
        self.client = _unmapped(get_remote_addr(self.transport))
        self.roster.enter(self)
        self.roster.move(self, Phase.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self.roster.leave(self)
        self.roster.ended()
        self.closing = True
        self._forget_requests()
        self.out.resume()

    def eof_received(self) -> None:
        """A client that sends no more is gone: that is how it gives up what it asked for. The transport closes."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.roster.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing or self.parser.over:
            self._discard(nbytes)
        elif self.pending:
            self.pending += self.roster.buffer[:nbytes]
        else:
            self._parse(self.roster.buffer[:nbytes])

    def pause_writing(self) -> None:
        self.out.pause()

    def resume_writing(self) -> None:
        self.out.resume()

    # -- bytes in

    def _parse(self, data: memoryview) -> None:
        """Parse as much as may be, and keep the rest."""
        parser = self.parser
        try:
            while data and not parser.over and not self._full():
                data = data[parser.feed(data) :]
        except Refused as refused:
            self.refuse(refused)
            return
        if parser.over:
            self._discard(len(data))
        self.pending = b"" if parser.over else bytes(data)
        self._settle()

    def _go_on(self) -> None:
        if self.pending and not self._full():
            pending, self.pending = self.pending, b""
            self._parse(memoryview(pending))
        else:
            self._settle()

    def _full(self) -> bool:
        """Whether what has come already has to be dealt with first."""
        if len(self.queue) >= self.limits.queued:
            return True
        return self.reading is not None and len(self.reading.body) >= self.limits.buffered_body_bytes

    def _discard(self, size: int) -> None:
        if size:
            self.unread = True
            self.discarded += size
            self.heard = self.roster.clock()
            if self.discarded > self.limits.discard_bytes:
                self.roster.give_up(self, "discarded")

    def began(self, head: Head) -> None:
        """The parser's: a request, as far as its head."""
        exchange = Exchange(self, head, self.parser.weight())
        self.fresh = False
        if not self.roster.may_ask(self, exchange.scope["path"]):
            raise refusal.no_room("has as many connections at work as it may have")
        self.reading = exchange
        if self.current is None:
            self._start(exchange)
        else:
            self.queue.append(exchange)

    def body(self, data: bytes) -> None:
        assert self.reading is not None
        self.reading.add(data)

    def ended(self) -> None:
        assert self.reading is not None
        self.reading.end()
        self.reading = None

    # -- answers, in order

    def _start(self, exchange: Exchange) -> None:
        self.current = exchange
        self.roster.turns.take(exchange.begin, exchange.first and exchange.scope["path"] in self.limits.open_paths)

    def answered(self) -> None:
        """The exchange's: the current answer is complete."""
        self.server_state.total_requests += 1
        self.current = None
        if self.closing:
            return
        if self.queue:
            self._start(self.queue.pop(0))
        elif self.last_word is not None:
            self._say(self.last_word)
            return
        self._go_on()

    def refuse(self, refused: Refused) -> None:
        """End the connection with this answer, after those of the requests before."""
        self.roster.note(self, refused.reason)
        self.parser.stop()
        self.pending = b""
        self.unread = True
        broken, self.reading = self.reading, None
        if broken is not None and broken is not self.current:
            self.queue.remove(broken)
        elif broken is not None:
            broken.forsake()
            self.current = None
            if broken.response_started:
                self.close()
                return
        self.last_word = refused.settled()
        if self.current is None:
            self._say(refused)
        else:
            self._settle()

    def _say(self, refused: Refused) -> None:
        self.write(refused.answer(self.server_state.default_headers))
        self.close()

    def _settle(self) -> None:
        """Bring reading, phase and weight in line with what there is."""
        if self.closing:
            return
        if (bool(self.pending) or self._full()) != self.paused:
            self.paused = not self.paused
            (self.transport.pause_reading if self.paused else self.transport.resume_reading)()
        if self.current is not None:
            phase = Phase.BODY if self.current is self.reading else Phase.ANSWER
        elif self.parser.underway or self.fresh:
            phase = Phase.HEAD
        else:
            phase = Phase.IDLE
        if phase is not self.phase:
            self.roster.move(self, phase)
        held = len(self.pending) + sum(exchange.size for exchange in self.queue)
        if self.parser.in_head:
            held += self.parser.weight()
        elif self.reading is not None and self.reading is self.current:
            held += int(self.reading.size * self.roster.limits.body_weight)
        if held != self.held:
            self.roster.weigh(self, held)

    # -- what exchanges see as transport and flow control

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self.out.write(data)

    @property
    def write_paused(self) -> bool:
        return self.out.paused

    def is_closing(self) -> bool:
        return self.closing or self.transport.is_closing()

    async def drain(self) -> None:
        await self.out.drain()

    def resume_reading(self) -> None:
        """The application takes the body: there may be room for more."""
        if self.paused and not self.closing:
            self._go_on()

    # -- the end

    def close(self) -> None:
        """End the connection once what was written has been sent.

        While its client may be sending, closing would answer with a reset, which could overtake our answer. So only our
        side is closed then, and what comes is thrown away until the client has had time to read.
        """
        if self.is_closing():
            return
        self.closing = True
        linger = self.unread or bool(self.pending) or self.reading is not None or bool(self.queue)
        self._forget_requests()
        self.roster.weigh(self, 0)
        self.out.flush()
        if not linger:
            self.roster.move(self, Phase.CLOSING)
            self.transport.close()
            return
        self.roster.move(self, Phase.LINGER)
        self.heard = self.since
        self.transport.write_eof()
        if self.paused:
            self.transport.resume_reading()

    def abort(self) -> None:
        """End it now. The application learns of it in the loop's next turn."""
        self.closing = True
        self.transport.abort()

    def _forget_requests(self) -> None:
        self.parser.stop()
        self.pending = b""
        if self.current is not None:
            self.current.forsake()
        self.current = self.reading = None
        self.queue.clear()

    def shutdown(self) -> None:
        """The server ends: at once where nothing is under way, else after that answer. Requests behind it get none."""
        if self.current is None:
            self.close()
        else:
            self.current.keep_alive = False

"""uvicorn's httptools protocol with limits on what one connection may take."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runtime.server.http_protocol import error_responses
from runtime.server.http_protocol.connection import BufferedTransport, Connection, Phase
from runtime.server.http_protocol.connection_manager import ConnectionManager
from runtime.server.http_protocol.error_responses import HttpRejection

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

PARSED_BYTES = 16 * 2**10  # per event loop iteration: they may hold thousands of chunks
PIECE_OVERHEAD = 64  # bytes that take as long as passing one piece on
CHUNKED_PIECE_BYTES = 4096
BODY_PIECE_BYTES = 64 * 2**10
_END = b"\r\n\r\n"  # of a head, and of a chunked body with its trailers
_REQUEST_LINE = re.compile(rb"[A-Za-z-]+ [^\s]+ HTTP/1\.[01]\r\n")
_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)


class GuardedProtocol(HttpToolsProtocol, Connection):
    """One connection.

    Received data is passed to the parser in pieces, each of which ends at the latest where a request ends. So at most
    one request is parsed until its response is complete, and a complete head is checked before it is parsed. The socket
    is not read while data is left that cannot be parsed yet.

    Attributes:
        in_body: A head has been parsed, and the end of its request has not.
        body_bytes: Bytes of this request's body, as received.
        remaining: Bytes that a body of known length still lacks.
        bytes_without_data: Bytes of a chunked body since its last data: of a chunk's header, or of trailers.
        discarded: Bytes that were received after the last response.
    """

    transport: BufferedTransport

    def __init__(self, manager: ConnectionManager, **arguments: Any) -> None:
        """Creates the protocol.

        Args:
            manager: Manages all connections.
            arguments: Those of uvicorn's protocol.
        """
        super().__init__(**arguments)
        Connection.__init__(self)  # uvicorn's class does not call it
        self.manager = manager
        self.limits = manager.limits
        self.accepted = manager.clock()
        self.access_log = False  # the application writes it
        self.application = self.app
        self.app = self._serve
        self.parse_scheduled = False
        self.head_incomplete = False  # `unparsed` is no complete head
        self.request_line_checked = False  # of an incomplete head
        self.in_body = False
        self.body_bytes = self.remaining = self.bytes_without_data = self.chunks = self.trailers = 0
        self.blank_lines = 0  # in a chunked body
        self.last_bytes = b""  # of a chunked body, as `_END` may be cut
        self.rejection: HttpRejection | None = None
        self.discarded = 0

    @property
    def is_answering(self) -> bool:
        """Whether a request has no complete response yet."""
        return self.cycle is not None and not (self.cycle.response_complete or self.cycle.disconnected)

    # -- events of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wrapped = BufferedTransport(cast(asyncio.Transport, transport), self, self.manager.clock)
        super().connection_made(wrapped)
        if self.client is not None:
            self.client = unmapped(self.client[0]), self.client[1]
        if self.server is not None:
            self.server = unmapped(self.server[0]), self.server[1]
        self.manager.add(self)
        self.manager.set_phase(self, Phase.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self.manager.remove(self)
        self.transport.closing = True
        super().connection_lost(None)  # with an exception, uvicorn would keep the timer and with it the connection
        self.unparsed = b""
        self.transport.user, self.app = None, self.application  # no reference cycles: the collector runs rarely

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self._discard(len(data))
            return
        self.unparsed = self.unparsed + data if self.unparsed else data
        self.head_incomplete = False
        if not self.parse_scheduled:
            self._parse()

    # -- parsing

    def _parse(self) -> None:
        """Parse received data, as much as one event loop iteration may."""
        self.parse_scheduled = False
        parsed = 0
        while self.unparsed and parsed < PARSED_BYTES and self._accepts_data():
            piece = self._next_body_piece() if self.in_body else self._next_head()
            if not piece:  # an incomplete head, or a rejected request
                break
            parsed += len(piece) + PIECE_OVERHEAD
            super().data_received(piece)
        self._schedule_parsing()
        self._update()

    def _accepts_data(self) -> bool:
        blocked = self.flow.read_paused or self.transport.is_closing()
        return not blocked and (self.in_body or not self.is_answering)

    def update_reading(self) -> None:
        """Continue with unparsed data if it can be parsed now, or with reading the socket."""
        self._schedule_parsing()
        self._update()

    def _schedule_parsing(self) -> None:
        waits = self.unparsed and not self.head_incomplete and not self.parse_scheduled
        if waits and self._accepts_data():
            self.parse_scheduled = True
            self.loop.call_soon(self._parse)

    def _next_head(self) -> bytes:
        """Take a complete head; b"" if it is not complete, or rejected."""
        data = self.unparsed = self.unparsed.lstrip(b"\r\n")  # RFC 9112, 2.2
        end = data.find(_END) + len(_END)
        complete = end >= len(_END)
        self.head_incomplete = not complete
        head = data[:end] if complete else data
        if len(head) > self.limits.head_bytes or head.count(b"\n") > self.limits.headers + 2:
            self.reject(error_responses.head_too_large(self.limits))
        elif head.startswith(b"CONNECT "):
            self.reject(error_responses.CONNECT_NOT_SUPPORTED)
        elif not complete and not self.request_line_checked:
            self.request_line_checked = b"\n" in head
            if _is_malformed(head):
                self.reject(error_responses.INVALID_REQUEST)
        elif complete:
            self.unparsed, self.request_line_checked = data[end:], False
            # RFC 9110, 7.8: a server may ignore an offer to upgrade. The parser would take the body for that protocol.
            return _UPGRADE.sub(b"\r\nignored-upgrade", head)
        return b""

    def _next_body_piece(self) -> bytes:
        """Take a part of a body, which ends at the latest where the body ends."""
        if self.remaining:
            size = min(self.remaining, BODY_PIECE_BYTES)
            piece, self.unparsed = self.unparsed[:size], self.unparsed[size:]
            self.remaining -= len(piece)
        else:
            start = len(self.last_bytes)
            data = self.last_bytes + self.unparsed[:CHUNKED_PIECE_BYTES]
            end = data.find(_END) + len(_END)
            if end >= len(_END):
                self.blank_lines += 1
                piece, self.last_bytes = data[start:end], b""
            else:
                piece, self.last_bytes = data[start:], data[1 - len(_END) :]
            self.unparsed = self.unparsed[len(piece) :]
            self.bytes_without_data += len(piece)
            if self.bytes_without_data > self.limits.head_bytes:
                self.reject(error_responses.head_too_large(self.limits))
                return b""
            if self.blank_lines > self.limits.chunks:  # each ends a piece
                self.reject(error_responses.too_many_chunks(self.limits.chunks))
                return b""
        self.body_bytes += len(piece)
        return piece

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_body:
            super().on_header(name, value)
            return
        self.trailers += 1  # they are ignored: uvicorn would add them to the headers
        if self.trailers > self.limits.headers:
            self._stop_parsing(error_responses.head_too_large(self.limits))

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False
        super().on_headers_complete()
        self.in_body = True
        self.body_bytes = self.bytes_without_data = self.chunks = self.trailers = self.blank_lines = 0
        self.last_bytes = b""
        self.remaining = next((int(value) for name, value in self.headers if name == b"content-length"), 0)

    def on_chunk_header(self) -> None:
        self.bytes_without_data = 0
        self.chunks += 1
        if self.chunks > self.limits.chunks:
            self._stop_parsing(error_responses.too_many_chunks(self.limits.chunks))

    def on_body(self, body: bytes) -> None:
        self.bytes_without_data = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.in_body = False

    def _stop_parsing(self, rejection: HttpRejection) -> None:
        """Ends parsing: uvicorn calls `send_400_response` after an error of a callback."""
        self.rejection = rejection
        raise ValueError(rejection.message)  # `raise rejection` would create a reference cycle with this connection

    def _discard(self, size: int) -> None:
        self.discarded += size
        self.last_discard = self.manager.clock()
        if self.discarded > self.limits.discard_bytes:
            self.manager.evict(self, "discarded")

    # -- requests and responses

    async def _serve(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI application that uvicorn calls for each request."""
        assert scope["type"] == "http"
        cycle = self.cycle
        if not self.manager.may_handle(self, scope["path"]):
            self.reject(error_responses.overloaded("has as many connections at work as it may have"))
            return
        is_probe = self.is_new and scope["path"] in self.limits.probe_paths
        self.is_new = False
        if not is_probe:
            await self.manager.start_limit.wait()
        if cycle.disconnected:
            return
        if self.limits.age_seconds and self.manager.clock() - self.accepted >= self.limits.age_seconds:
            cycle.keep_alive = False

        async def send_early(message: ASGISendEvent) -> None:
            # uvicorn would wait for the rest of a body that the application does not read
            if cycle.more_body and not cycle.response_started:
                cycle.keep_alive = False
            await send(message)

        await self.application(scope, receive, send_early if cycle.more_body else send)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # they would keep the request until the next one: kilobytes that an idle connection does not need
        self.cycle, self.scope, self.headers = cast(Any, None), cast(Any, {}), []
        self.update_reading()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it when parsing has failed."""
        self.reject(self.rejection or error_responses.INVALID_REQUEST)

    def reject(self, rejection: HttpRejection) -> None:
        """End the connection with this response, or without one if another one has begun."""
        self.manager.count_closed(self, rejection.reason)
        self.rejection = rejection
        if not (self.is_answering and self.cycle.response_started):
            self.transport.write(rejection.response(self.server_state.default_headers))
        self.transport.close()

    def _update(self) -> None:
        """Pause or resume the socket, and set phase and buffered bytes."""
        if self.transport.is_closing():
            return
        answering = self.is_answering
        waits = self.unparsed and (self.parse_scheduled or not self._accepts_data())
        if (pause := bool(waits) or self.flow.read_paused) != self.socket_paused:
            self.socket_paused = pause
            (self.transport.transport.pause_reading if pause else self.transport.transport.resume_reading)()
        buffered = len(self.unparsed)
        if answering:
            phase = Phase.BODY if self.in_body else Phase.ANSWER
            if self.in_body:
                buffered += int(self.body_bytes * self.limits.body_weight)
        elif self.unparsed or self.is_new:
            phase = Phase.HEAD
        else:
            phase = Phase.IDLE
        if phase is not self.phase:
            self.manager.set_phase(self, phase)
            if phase is Phase.HEAD and self.timeout_keep_alive_task is not None:  # the connection is not idle any more
                self.timeout_keep_alive_task.cancel()
        if buffered != self.buffered:
            self.manager.set_buffered(self, buffered)

    # -- the end of the connection

    def finish(self) -> None:
        """End the connection when all data has been sent.

        If the client may still be sending, closing would cause a reset, which could overtake the response. So only the
        server's side is closed, and received data is discarded until the client has had time to read the response.
        """
        transport = self.transport
        discard = self.rejection is not None or self.in_body or bool(self.unparsed)
        self.unparsed = b""
        self.manager.set_buffered(self, 0)
        transport.flush()
        transport.closing = True
        if self.is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not discard:
            self.manager.set_phase(self, Phase.CLOSING)
            transport.transport.close()
            return
        self.manager.set_phase(self, Phase.DRAINING)
        self.last_discard = self.since
        transport.transport.write_eof()
        if self.socket_paused:
            self.socket_paused = False
            transport.transport.resume_reading()


def _is_malformed(head: bytes) -> bool:
    """Whether an incomplete head is not one of HTTP. The parser checks complete ones."""
    return not _REQUEST_LINE.match(head) if b"\n" in head else bool(head) and not head[:1].isalpha()


def unmapped(address: str) -> str:
    """Returns the IPv4 address of an IPv4-mapped IPv6 address, as a dual-stack listener has it; others unchanged."""
    return address.removeprefix("::ffff:") if "." in address else address

"""The requests in a stream of bytes: the same ones however it was cut into segments, and none larger than allowed.

llhttp parses. It is fed in small pieces, since it cannot be stopped inside one: the bytes of a piece bound both how far
a head can pass its limit unseen and how many pipelined requests come out at once.

An offer to upgrade the connection (``Connection: Upgrade``) is ignored, as RFC 9110 (7.8) allows: its request is an
ordinary one, with its body. llhttp, though, takes the first byte after such a head for the other protocol's. So a fresh
parser goes on there, one that has first read a head with the same framing.
"""

from __future__ import annotations

from typing import Protocol

import httptools

from runtime.server.wire import refusal
from runtime.server.wire.limits import Limits

PIECE = 512  # bytes
HEAD_WEIGHT = 4096  # bytes, of a request without fields and what is made of it
FIELD_WEIGHT = 128  # bytes, of a field beside its text
_FRAMING = (b"content-length", b"transfer-encoding")


class Head:
    """Request line and headers; names are in lower case."""

    __slots__ = ("headers", "keep_alive", "method", "url", "version")

    def __init__(self) -> None:
        self.method = ""
        self.url = b""
        self.version = "1.1"
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True


class Receiver(Protocol):
    """Whom a parser tells. `began` may raise Refused."""

    def began(self, head: Head) -> None: ...
    def body(self, data: bytes) -> None: ...
    def ended(self) -> None: ...


class RequestParser:
    """Parses what it is fed and tells `receiver`.

    Attributes:
        head: of the request under way.
        underway: whether bytes of a request have come and its end has not.
        over: nothing more is parsed: the last request asked for that, or `stop` was called.
    """

    def __init__(self, limits: Limits, receiver: Receiver) -> None:
        self.limits = limits
        self.receiver: Receiver | None = receiver
        self.head = Head()
        self.underway = False
        self.over = False
        self.in_head = False
        self.size = 0  # bytes of the head, in whole pieces
        self.remaining = 0  # bytes of a body whose length is known
        self.silent = 0  # bytes of a chunked body since the last chunk: of an extension, or of trailers
        self.fields = 0
        self.chunks = 0
        self.upgrading = False
        self.priming = False
        self.parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)

    def feed(self, data: memoryview) -> int:
        """Parse the next piece of `data`; how many bytes that were. Raises Refused; nothing can be parsed after it."""
        assert self.parser is not None
        piece = data[: self.remaining or PIECE]
        fed = len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            fed = upgrade.args[0]
            self._ignore_upgrade()
        except httptools.HttpParserError as error:
            if not self.over:
                raise _refused(error) from None
        if self.in_head:
            self.size += fed
        elif self.underway and not self.remaining:
            self.silent += fed
        if self.size + self.silent > self.limits.head_bytes + PIECE:
            raise refusal.head_too_large(self.limits.head_bytes, self.limits.headers)
        return fed

    def weight(self) -> int:
        """Bytes of memory that the head under way takes, roughly."""
        return HEAD_WEIGHT + self.size + FIELD_WEIGHT * self.fields

    def stop(self) -> None:
        """Parse nothing more, and let go of what is held in a circle."""
        self.over = True
        self.parser = self.receiver = None

    def _ignore_upgrade(self) -> None:
        framing = b"".join(name + b": " + value + b"\r\n" for name, value in self.head.headers if name in _FRAMING)
        self.upgrading, self.priming = False, True
        self.parser = httptools.HttpRequestParser(self)
        try:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
        except httptools.HttpParserError as error:
            raise _refused(error) from None
        self.priming = False

    # -- what llhttp calls

    def on_message_begin(self) -> None:
        if self.priming:
            return
        if self.over:
            raise refusal.invalid()  # ends the feeding; the request is nobody's any more
        self.head = Head()
        self.underway = self.in_head = True
        self.size = self.silent = self.fields = self.chunks = 0

    def on_url(self, url: bytes) -> None:
        if not self.priming:
            self.head.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.priming:
            return
        self.fields += 1
        if self.fields > self.limits.headers:
            raise refusal.head_too_large(self.limits.head_bytes, self.limits.headers)
        if self.in_head:  # trailers are not told: no route reads them, and headers they must not become
            self.head.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.priming:
            return
        assert self.parser is not None
        assert self.receiver is not None
        head, parser = self.head, self.parser
        head.method = parser.get_method().decode("ascii")
        head.version = parser.get_http_version()
        head.keep_alive = head.version != "1.0" and parser.should_keep_alive()
        self.in_head = False
        self.upgrading = parser.should_upgrade()
        if head.method == "CONNECT":
            raise refusal.no_tunnel()
        for name, value in head.headers:
            if name == b"content-length":
                self.remaining = int(value)  # llhttp has seen to it that it is one number, and the only framing
        self.receiver.began(head)

    def on_body(self, data: bytes) -> None:
        assert self.receiver is not None
        if self.remaining:
            self.remaining -= len(data)
        self.silent = 0
        self.receiver.body(data)

    def on_chunk_header(self) -> None:
        self.silent = 0
        self.chunks += 1
        if self.chunks > self.limits.chunks:
            raise refusal.too_many_chunks(self.limits.chunks)

    def on_message_complete(self) -> None:
        if self.upgrading:  # llhttp believes that there is no body
            return
        assert self.receiver is not None
        self.underway = False
        self.remaining = self.silent = 0
        self.over = not self.head.keep_alive
        self.receiver.ended()


def _refused(error: httptools.HttpParserError) -> Exception:
    """What to tell the client. An exception that is no refusal is a mistake of ours, and passes."""
    if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
        cause = error.__context__
        return cause if isinstance(cause, Exception) else error
    return refusal.invalid()

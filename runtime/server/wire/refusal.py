"""The answers that a connection gives by itself, before a route could: broken, too large, too slow, no room."""

from __future__ import annotations

import http

import msgspec

from runtime.server.http_responses import RETRY_AFTER_SECONDS, error_object


class Refused(Exception):
    """What came cannot be served: the connection ends with this answer. `reason` is its name in the metrics."""

    def __init__(self, reason: str, status: int, message: str, code: str | None = None, headers: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.message = message
        self.code = code
        self.headers = headers

    def settled(self) -> Refused:
        """Itself, without the frames and errors it went through: those hold what would hold it."""
        self.__context__ = None
        return self.with_traceback(None)

    def answer(self, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        """The whole answer, as bytes."""
        body = msgspec.json.encode(error_object(self.status, self.message, code=self.code))
        first = f"HTTP/1.1 {self.status} {http.HTTPStatus(self.status).phrase}\r\n".encode()
        dated = b"".join(name + b": " + value + b"\r\n" for name, value in default_headers)
        rest = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{self.headers}\r\n"
        )
        return first + dated + rest.encode() + body


def invalid() -> Refused:
    return Refused("invalid", 400, "what was sent is not an HTTP/1.1 request", "invalid_http")


def head_too_large(bytes_: int, fields: int) -> Refused:
    message = f"request line, headers and trailers have more than {bytes_ // 1024} KiB or {fields} fields; send less"
    return Refused("head_too_large", 431, message, "headers_too_large")


def too_many_chunks(most: int) -> Refused:
    return Refused("invalid", 400, f"the body comes in more than {most} chunks; send larger ones", "too_many_chunks")


def no_tunnel() -> Refused:
    return Refused("invalid", 405, "CONNECT is not possible: this server is no proxy", headers="allow: GET, POST\r\n")


def body_too_slow(seconds: float) -> Refused:
    return Refused("slow_body", 408, f"the body did not arrive within {seconds:g} s", "body_too_slow")


def no_room(what: str, reason: str = "no_room") -> Refused:
    message = f"the server {what}; try again a little later"
    return Refused(reason, 503, message, "no_room", f"retry-after: {RETRY_AFTER_SECONDS}\r\n")

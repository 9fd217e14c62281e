"""Error responses of the HTTP protocol itself, for requests that never reach the application."""

from __future__ import annotations

import http

from runtime.errors import RequestError
from runtime.server.http_protocol.limits import Limits
from runtime.server.serving.handler import error_response


class HttpRejection(RequestError):
    """A request that cannot be served. The connection ends with the response."""

    def __init__(self, reason: str, status: int, message: str, code: str | None = None) -> None:
        """`reason`: label of the metric that counts closed connections."""
        super().__init__(message, status=status, code=code)
        self.reason = reason

    def response(self, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        """The complete response, with `default_headers` (the date) among its headers."""
        answer = error_response(self, headers={"Connection": "close"})
        status_line = f"HTTP/1.1 {self.status} {http.HTTPStatus(self.status).phrase}\r\n".encode()
        headers = b"".join(name + b": " + value + b"\r\n" for name, value in [*default_headers, *answer.raw_headers])
        return status_line + headers + b"\r\n" + bytes(answer.body)


INVALID_REQUEST = HttpRejection("invalid", 400, "what was sent is not an HTTP/1.1 request", "invalid_http")
CONNECT_NOT_SUPPORTED = HttpRejection("invalid", 405, "CONNECT is not supported: this server is not a proxy")


def head_too_large(limits: Limits) -> HttpRejection:
    size = f"{limits.head_bytes // 1024} KiB or {limits.headers} fields"
    message = f"request line, headers and trailers have more than {size}; send less"
    return HttpRejection("head_too_large", 431, message, "headers_too_large")


def too_many_chunks(limit: int) -> HttpRejection:
    return HttpRejection("invalid", 400, f"the body has more than {limit} chunks; send larger ones", "too_many_chunks")


def body_timeout(seconds: float) -> HttpRejection:
    return HttpRejection("slow_body", 408, f"the body did not arrive within {seconds:g} s", "body_too_slow")


def overloaded(cause: str, reason: str = "no_room") -> HttpRejection:
    message = f"the server {cause}; try again a little later"
    return HttpRejection(reason, 503, message, "no_room")

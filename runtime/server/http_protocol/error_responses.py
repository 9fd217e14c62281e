"""Error responses: their JSON and headers, and those of the HTTP protocol itself.

The latter are for requests that never reach the application.
"""

from __future__ import annotations

import http
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from runtime.errors import RequestError
from runtime.server.http_protocol.content_encoding import DECODERS
from runtime.server.http_protocol.limits import Limits

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
RETRY_AFTER_SECONDS = 1  # for a full queue (429) and a server without backend (503)
_HEADERS: dict[int, dict[str, str]] = {  # per status
    401: {"WWW-Authenticate": "Bearer"},
    405: {"Allow": "GET, POST"},  # for CONNECT, which has no route; for routes the framework sets Allow
    415: {"Accept-Encoding": ", ".join(DECODERS)},
    **{status: {"Retry-After": str(RETRY_AFTER_SECONDS)} for status in (429, 503)},
}


class ErrorDetail(TypedDict):
    message: Annotated[str, Field(description="what is wrong, and the fix")]
    type: Annotated[str, Field(description="type of the error, by status")]
    param: Annotated[str | None, Field(description="name of the invalid field, if any")]
    code: Annotated[str | None, Field(description="stable error code, if any")]


class ErrorResponse(TypedDict):
    """An error of all routes but `/v1/messages`."""

    error: Annotated[ErrorDetail, Field(description="details")]


def error_object(error: RequestError) -> ErrorResponse:
    kind = ERROR_TYPES.get(error.status, "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_response(
    error: RequestError,
    headers: Mapping[str, str] | None = None,
    make_object: Callable[[RequestError], Any] = error_object,
) -> Response:
    """Returns an error response. `make_object` returns its JSON object, whose form depends on the API."""
    headers = {**_HEADERS.get(error.status, {}), **(headers or {})}
    return Response(msgspec.json.encode(make_object(error)), error.status, headers, media_type="application/json")


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

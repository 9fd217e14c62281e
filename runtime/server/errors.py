"""Every failure as a route's clients know it: OpenAI's object, ``{"error": {"message", "type", "param", "code"}}``, or
Anthropic's, ``{"type": "error", "error": {"type", "message"}}``."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.errors import RequestError
from runtime.server.content_encoding import DECODERS

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_implemented_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = _TYPES | {
    413: "request_too_large",
    500: "api_error",
    501: "api_error",
    503: "overloaded_error",
}
_ANTHROPIC = "/v1/messages"  # the route, and those below it
RETRY_AFTER_SECONDS = 1  # for a full queue (429) and a server without backend (503)


def error_object(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, Any]]:
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def openai_error(error: RequestError) -> dict[str, dict[str, Any]]:
    return error_object(error.status, error.message, param=error.param, code=error.code)


def anthropic_error(error: RequestError) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_body(error: RequestError, path: str = "") -> bytes:
    """`path`: of the route, which says whose object it is."""
    anthropic = path == _ANTHROPIC or path.startswith(_ANTHROPIC + "/")
    return msgspec.json.encode(anthropic_error(error) if anthropic else openai_error(error))


def error_headers(error: RequestError) -> dict[str, str]:
    """The headers that a status asks for."""
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if error.status == 415:
        return {"Accept-Encoding": ", ".join(DECODERS)}
    if error.status in (429, 503):
        return {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return {}


def not_built(what: str, instead: str = "") -> RequestError:
    """A route of the interface that this version has not: 501, by name."""
    message = f"{what} is not built in this version" + (f"; {instead}" if instead else "")
    return RequestError(message, status=501, code="not_built")

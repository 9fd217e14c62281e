"""Every failure as OpenAI's error object: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.errors import RequestError

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
RETRY_AFTER_SECONDS = 1  # for a full queue (429) and a server without backend (503)


def error_object(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, Any]]:
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def of_error(error: RequestError) -> dict[str, dict[str, Any]]:
    return error_object(error.status, error.message, param=error.param, code=error.code)


def error_body(error: RequestError) -> bytes:
    return msgspec.json.encode(of_error(error))


def error_headers(error: RequestError) -> dict[str, str]:
    """The headers that a status asks for."""
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if error.status in (429, 503):
        return {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return {}


def not_built(what: str, instead: str = "") -> RequestError:
    """A route of the interface that this version has not: 501, by name."""
    message = f"{what} is not built in this version" + (f"; {instead}" if instead else "")
    return RequestError(message, status=501, code="not_built")

"""The one error of talking to the API server."""

import json
from collections.abc import Mapping


class ApiError(Exception):
    """A request that the API server refused, or that did not reach it."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({status} {reason})" if status else message)
        self.status = status  # of HTTP; 0 when no answer came
        self.reason = reason  # the API's CamelCase word ("AlreadyExists"), "Unreachable" when no answer came
        self.message = message  # the server's sentence
        self.retry_after = retry_after  # seconds the server asks to wait, None when it asks for nothing

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def exists(self) -> bool:
        """A create met an object of that name."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """The object is another than the one we knew: a uid or resourceVersion that does not hold any more."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def refusal(self) -> bool:
        """The server understood and said no, and would say no again: admission, validation, quota, RBAC."""
        return self.status in (400, 403, 413, 422)

    @property
    def general(self) -> bool:
        """It is about no object: without an answer, throttled, not logged in or not leading, all else fails as well."""
        return self.status in (0, 401, 429)


def api_error(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """From an HTTP answer: a Status object where the API server itself speaks, else plain text (a proxy in between)."""
    retry_after = _seconds(headers.get("Retry-After"))
    try:
        said = json.loads(body)
        if not isinstance(said, dict) or said.get("kind") != "Status":
            raise ValueError
    except ValueError:
        text = body.decode(errors="replace")[:500].strip()
        return ApiError(status, "Unknown", text or "no reason given", retry_after)
    if retry_after is None:
        retry_after = _seconds((said.get("details") or {}).get("retryAfterSeconds"))
    return ApiError(status, said.get("reason") or "Unknown", said.get("message") or "no reason given", retry_after)


def _seconds(value: object) -> float | None:
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if seconds > 0 else None

"""Server-sent events and error objects for this project's HTTP clients. It does not depend on their HTTP library."""

from __future__ import annotations

import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8000"


class ServerError(Exception):
    """The server refused or failed. `kind` is a short text that groups errors, such as "429" or "error event"."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def is_address(url: str) -> bool:
    """Returns whether a URL has the form of a server's address."""
    try:
        parts = urlsplit(url)
        name = (parts.hostname or "").encode("idna")
        return url.isprintable() and parts.scheme in ("http", "https") and bool(name) and parts.port != 0
    except ValueError:  # an incomplete IPv6 address, a port that is no number, or a label that DNS cannot have
        return False


def may_use_proxy(url: str) -> bool:
    """Returns whether the environment's proxy applies to this server; False for a server on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host.removeprefix("::ffff:"))
        return not (address.is_loopback or address.is_unspecified)
    except ValueError:
        return host != "localhost"


def read_event(line: str) -> dict[str, Any] | None:
    """Returns the object of one line of an event stream; None for comments, blank lines and the closing ``[DONE]``.

    Raises:
        ServerError: the server sent an error in place of an event.
    """
    if not line.startswith("data:") or is_end(line):
        return None
    return event_object(line[5:])


def event_object(data: str | bytes) -> dict[str, Any]:
    """Parses the data of an event. Raises ServerError as `read_event` does."""
    event: dict[str, Any] = json.loads(data)
    if "error" in event:
        raise ServerError(error_message(event) or "the server failed", "error event")
    return event


def is_end(line: str) -> bool:
    return line.startswith("data:") and line[5:].strip() == "[DONE]"


def refusal(status: int, body: bytes) -> ServerError:
    """Returns the error of a response with a status other than 200."""
    try:
        message = error_message(json.loads(body))
    except ValueError:
        message = None
    return ServerError(message or f"the server answered {status}", str(status))


def error_message(body: Any) -> str | None:
    """Returns OpenAI's ``error.message``, or None."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None

"""What our own HTTP clients share: reading server-sent events and error objects. No torch, no engine."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8000"


class ServerError(Exception):
    """The server refused or failed. `kind` is short and the same for all of its sort: "429", "error event"."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def may_use_proxy(url: str) -> bool:
    """Whether the environment's proxy is for this server: not for one on this machine."""
    host = httpx.URL(url).host
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def read_event(line: str) -> dict[str, Any] | None:
    """The object of one line of an event stream; None for comments, blank lines and the closing ``[DONE]``.

    Raises ServerError for an error that the server sent in place of an event.
    """
    if not line.startswith("data:"):
        return None
    data = line[5:].strip()
    if data == "[DONE]":
        return None
    event: dict[str, Any] = json.loads(data)
    if "error" in event:
        raise ServerError(error_message(event) or "the server failed", "error event")
    return event


def is_end(line: str) -> bool:
    return line.startswith("data:") and line[5:].strip() == "[DONE]"


def refusal(response: httpx.Response) -> ServerError:
    """What a response other than 200, already read, says in its error object."""
    try:
        message = error_message(response.json())
    except ValueError:
        message = None
    return ServerError(message or f"the server answered {response.status_code}", str(response.status_code))


def error_message(body: Any) -> str | None:
    """OpenAI's ``error.message``."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None

"""Reads the head of an HTTP/1.1 request, and decides what to do with the request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from unmask_operator.activator.targets import Target

LARGEST_HEAD = 32 << 10  # bytes
HEAD_SECONDS = 10.0
RETRY_AFTER_SECONDS = 15  # about the time in which a pod starts
# Type of an error and headers of its answer, by HTTP status.
_ERRORS = {
    401: ("authentication_error", "WWW-Authenticate: Bearer"),
    429: ("rate_limit_error", f"Retry-After: {RETRY_AFTER_SECONDS}"),
    503: ("service_unavailable_error", f"Retry-After: {RETRY_AFTER_SECONDS}"),
}
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (\S+) HTTP/1\.[01]")


@dataclass(frozen=True)
class Head:
    """The head of a request.

    Attributes:
        method: the HTTP method.
        path: the path without its query.
        headers: names of the headers in lower case.
        received: its bytes.
    """

    method: str
    path: str
    headers: frozenset[str]
    received: bytes


class Refusal(Exception):
    """A request is answered with an error.

    Args:
        status: the HTTP status.
        reason: value of the label of the metric.
        message: for the client.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Reads the head of the first request, of at most the reader's limit. None: the client left without one.

    Raises:
        Refusal: the head is malformed, too large, or not complete in time.
    """
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            received = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise Refusal(431, "invalid", f"the head of the request is larger than {LARGEST_HEAD >> 10} KiB") from None
    except TimeoutError:
        raise Refusal(408, "invalid", f"the head of the request took longer than {HEAD_SECONDS:g} s") from None
    first, *lines = received.removesuffix(b"\r\n\r\n").split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(first)
    if request is None:
        raise Refusal(400, "invalid", "the request is not HTTP/1.1")
    names = frozenset(line.split(b":", 1)[0].strip().lower().decode("latin-1") for line in lines)
    path = re.sub("/{2,}", "/", request[2].partition(b"?")[0].decode("latin-1"))
    return Head(request[1].decode(), path, names, received)


def own_answer(head: Head, target: Target) -> bytes | None:
    """Returns the activator's answer to a request that wakes nothing; None for a request to hold.

    Chat pages ask for the models first. Browsers ask for leave before they post to another origin.

    Raises:
        Refusal: the request has no key although it needs one, or only a pod can answer it.
    """
    if (head.method, head.path) == ("GET", "/health"):
        return answer(200, {"status": "ok"})
    asks_for_models = (head.method, head.path) == ("GET", "/v1/models")
    preflight = head.method == "OPTIONS" and "access-control-request-method" in head.headers
    if head.method != "POST" and not asks_for_models and not preflight:
        raise Refusal(503, "asleep", "the service has no replicas; a POST request adds one")
    if target.needs_key and not preflight and not head.headers & {"authorization", "x-api-key"}:
        message = "API key is missing; send it in the header Authorization: Bearer <key> or X-Api-Key: <key>"
        raise Refusal(401, "no_key", message)
    if not asks_for_models:
        return None
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "unmask"} for name in target.models]
    return answer(200, {"object": "list", "data": models})


def error_answer(refusal: Refusal) -> bytes:
    """Returns the answer to a refused request, in the form of OpenAI's API."""
    kind, *headers = _ERRORS.get(refusal.status, ("invalid_request_error",))
    body = {"error": {"message": refusal.message, "type": kind, "param": None, "code": None}}
    return answer(refusal.status, body, headers)


def answer(status: int, body: object, headers: Sequence[str] = ()) -> bytes:
    """Returns an HTTP response with a JSON body, after which the connection is closed."""
    content = json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content

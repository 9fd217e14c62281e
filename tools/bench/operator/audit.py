"""Reads the operators' requests from the API server's audit log while it grows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

WRITES = ("create", "update", "patch", "delete", "deletecollection")


@dataclass(frozen=True)
class Request:
    """A request in the audit log.

    Attributes:
        at: seconds since the epoch when it was received.
        what: resource and subresource ("" for discovery).
        dry_run: whether it was a dry run.
        status: status of the answer; 0 while the request is running, as a watch is.
    """

    at: float
    verb: str
    what: str
    namespace: str
    name: str
    dry_run: bool
    status: int

    @property
    def writes(self) -> bool:
        return self.verb in WRITES and not self.dry_run

    def __str__(self) -> str:
        return f"{self.verb} {self.what or 'discovery'}{' (dry run)' if self.dry_run else ''}"


class AuditLog:
    """The requests of one user so far, each once."""

    def __init__(self, path: Path, user: str) -> None:
        self._path, self._user = path, user
        self._offset = 0
        self._seen: dict[str, Request] = {}

    def between(self, start: float, end: float = float("inf")) -> list[Request]:
        """Returns the requests that were received within a time range (seconds since the epoch)."""
        self._read_on()
        return [request for request in self._seen.values() if start <= request.at < end]

    def _read_on(self) -> None:
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the line is incomplete
                self._offset += len(line)
                event = json.loads(line)
                if event["user"].get("username") == self._user:
                    self._seen[event["auditID"]] = _request(event)


def _request(event: dict[str, Any]) -> Request:
    ref = event.get("objectRef") or {}
    return Request(
        at=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        verb=event["verb"],
        what="/".join(part for part in (ref.get("resource"), ref.get("subresource")) if part),
        namespace=ref.get("namespace", ""),
        name=ref.get("name", ""),
        dry_run="dryRun=" in event["requestURI"],
        status=int((event.get("responseStatus") or {}).get("code", 0)),
    )


def tally(requests: Iterable[Request]) -> dict[str, int]:
    """Returns the number of requests per verb and resource, the most frequent first."""
    return dict(Counter(map(str, requests)).most_common())

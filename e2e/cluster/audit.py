"""The API server's audit log."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.kube import Obj


def read_events(log: Path, user: str = "", after: int = 0) -> list[Obj]:
    """The events of one user, or of all, without the first `after` bytes; a line that is being written is left out."""
    with log.open("rb") as file:
        file.seek(after)
        events = [json.loads(line) for line in file if line.endswith(b"\n")]
    return [event for event in events if not user or event["user"].get("username") == user]

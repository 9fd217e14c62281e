"""Reads the API server's audit log."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.kube import Obj


def read_events(log: Path, user: str = "", after: int = 0) -> list[Obj]:
    """Returns the events of one user, or of all users, from lines that begin after the first `after` bytes.

    A last line that is not complete yet is left out.
    """
    with log.open("rb") as file:
        if after:
            file.seek(after - 1)
            file.readline()  # the rest of a line that was incomplete at that length
        events = [json.loads(line) for line in file if line.endswith(b"\n")]
    return [event for event in events if not user or event["user"].get("username") == user]

"""Detects another release of the operator that writes the status of the same resource."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from unmask_operator.objects import FIELD_MANAGER, Key, Obj

RECENT = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(minutes=30)


@dataclass
class _Contest:
    other: str
    pause: timedelta
    until: datetime


@dataclass
class OtherOperators:
    """The resources whose status another release writes too. In memory, per leader.

    Both releases stop writing the status. Each tries again after a minute, and then after twice the previous pause.

    Attributes:
        own: Field manager of this release for statuses.
    """

    own: str
    _contests: dict[Key, _Contest] = field(default_factory=dict)

    def forget(self, key: Key) -> None:
        self._contests.pop(key, None)

    def observe(self, key: Key, resource: Obj, now: datetime) -> str:
        """Returns the field manager of the other release while its status and ours replace each other, or "".

        A single write by another release is no contest: labels that select an operator may have changed.
        """
        contest = self._contests.get(key)
        if contest and now < contest.until:
            return contest.other
        times = dict(_status_writers(resource))
        ours = times.pop(self.own, None)
        other = max(times, key=lambda name: times[name], default="")
        if ours is None or not other or now - ours > RECENT or times[other] < ours:
            if contest and now - contest.until > 2 * RECENT:
                self.forget(key)
            return ""
        pause = min(2 * contest.pause, LONGEST_PAUSE) if contest else RECENT
        self._contests[key] = _Contest(other, pause, now + pause)
        return other

    def next_check(self, key: Key, now: datetime) -> float | None:
        """Returns seconds until the next try to write the status, or None without a contest."""
        contest = self._contests.get(key)
        return (contest.until - now).total_seconds() if contest and now < contest.until else None


def _status_writers(resource: Obj) -> Iterator[tuple[str, datetime]]:
    for entry in resource["metadata"].get("managedFields") or ():
        if entry.get("subresource") == "status" and entry["manager"].startswith(f"{FIELD_MANAGER}/") and entry["time"]:
            yield entry["manager"], datetime.fromisoformat(entry["time"])

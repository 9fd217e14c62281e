"""Detects others that write what the operator writes to a resource: releases its status, manifests its replicas."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from unmask_operator.objects import FIELD_MANAGER, Obj, section
from unmask_operator.plan.scalers import WINDOW, owners

RECENT = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(minutes=10)
CONTESTED = 3  # writes of replicas by a manifest within WINDOW


@dataclass
class _Contest:
    other: str
    pause: timedelta
    until: datetime


@dataclass
class OtherOperators:
    """Detects another release that writes the status of a resource too. In memory, per leader.

    Both releases stop writing the status. Each tries again after a minute, and then after twice the previous pause.

    Attributes:
        own: Field manager of this release for statuses.
    """

    own: str
    _contest: _Contest | None = None

    def observe(self, resource: Obj, now: datetime) -> str:
        """Returns the field manager of the other release while its status and ours replace each other, or "".

        A single write by another release is no contest: labels that select an operator may have changed.
        """
        contest = self._contest
        if contest and now < contest.until:
            return contest.other
        times = dict(_status_writers(resource))
        ours = times.pop(self.own, None)
        other = max(times, key=lambda name: times[name], default="")
        if ours is None or not other or now - ours > RECENT or times[other] < ours:
            if contest and now - contest.until > 2 * RECENT:
                self._contest = None
            return ""
        pause = min(2 * contest.pause, LONGEST_PAUSE) if contest else RECENT
        self._contest = _Contest(other, pause, now + pause)
        return other

    def next_check(self, now: datetime) -> float | None:
        """Returns seconds until the next try to write the status, or None without a contest."""
        contest = self._contest
        return (contest.until - now).total_seconds() if contest and now < contest.until else None


def _status_writers(resource: Obj) -> Iterator[tuple[str, datetime]]:
    for entry in resource["metadata"].get("managedFields") or ():
        manager, at = str(entry.get("manager")), entry.get("time")
        if entry.get("subresource") == "status" and manager.startswith(f"{FIELD_MANAGER}/") and at:
            yield manager, datetime.fromisoformat(str(at))


@dataclass
class ManifestWrites:
    """Counts the writes of a resource's replicas by manifests, which the autoscaler undoes. In memory, per leader."""

    _times: list[tuple[str, str, datetime]] = field(default_factory=list)  # manager, its time, now

    def observe(self, resource: Obj, now: datetime) -> str:
        """Returns the field manager that has overwritten the autoscaler `CONTESTED` times within `WINDOW`, or ""."""
        if not section(resource, "spec").get("autoscaling"):
            self._times = []
            return ""
        times = [one for one in self._times if now - one[2] < WINDOW]
        for owner in owners(resource):
            manager, at = str(owner.get("manager") or ""), str(owner.get("time") or "")
            is_new = (manager, at) not in [one[:2] for one in times]
            if not owner.get("subresource") and manager != FIELD_MANAGER and is_new:
                times.append((manager, at, now))
        self._times = times[-CONTESTED:]
        return times[-1][0] if len(times) >= CONTESTED else ""

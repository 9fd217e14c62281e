"""What the autoscaler remembers of one service. Nothing of it is written anywhere: a restart begins anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

GAP_SECONDS = 60  # a pause of the operator longer than this, and than three polls, makes the past worthless
PATIENCE_SECONDS = 60  # metrics may be missing for so long before ScalingReady says so


@dataclass(frozen=True)
class Reading:
    """The three gauges of one pod: requests, requests, per cent."""

    waiting: float
    running: float
    kv_percent: float


@dataclass(frozen=True)
class View:
    """One look at a service: its pods that are Ready, and not going, by name.

    Attributes:
        replicas: `spec.replicas` as it stands.
        readings: of the pods that answered.
        failures: why the others did not.
    """

    time: datetime
    replicas: int
    readings: Mapping[str, Reading] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recommendation:
    """Replicas that one look asked for: `low` by the load that was seen, `high` with a full load for unseen pods."""

    time: datetime
    low: int
    high: int


@dataclass(frozen=True)
class History:
    """Attributes:
    since: begin of the unbroken record.
    seen: when every Ready pod was last read (or the record's begin).
    blank: no look since the record's begin has read every Ready pod.
    changes: (time, replicas added or removed) that were written.
    """

    since: datetime | None = None
    seen: datetime | None = None
    blank: bool = True
    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[tuple[datetime, int], ...] = ()
    last_scale_time: datetime | None = None

    def at(self, now: datetime, polling: float) -> History:
        """This record, or a new one when too much time passed since its last entry (or the clock went back)."""
        if self.recommendations:
            pause = (now - self.recommendations[-1].time).total_seconds()
            if 0 <= pause <= max(GAP_SECONDS, 3 * polling):
                return self
        return History(since=now, seen=now, last_scale_time=self.last_scale_time)

    def with_recommendation(self, entry: Recommendation, complete: bool, keep_seconds: float) -> History:
        kept = tuple(r for r in self.recommendations if _age(r.time, entry.time) < keep_seconds)
        seen = entry.time if complete else self.seen
        return replace(self, recommendations=(*kept, entry), seen=seen, blank=self.blank and not complete)

    def scaled(self, now: datetime, change: int, keep_seconds: float = 1800) -> History:
        """After a write. autoscaling/v2 allows periods of at most 1800 s, so nothing older matters."""
        kept = tuple(c for c in self.changes if _age(c[0], now) < keep_seconds)
        return replace(self, changes=(*kept, (now, change)), last_scale_time=now)

    def covers(self, now: datetime, seconds: float) -> bool:
        return self.since is not None and _age(self.since, now) >= seconds

    def blind(self, now: datetime) -> bool:
        """Some Ready pod has given no metrics for longer than patience lasts."""
        return self.seen is not None and _age(self.seen, now) > PATIENCE_SECONDS

    def low(self, now: datetime, window: float) -> int:
        """The least that the window's looks asked for; the newest always counts."""
        return min(r.low for r in self.recommendations[-1:] + self._within(now, window))

    def high(self, now: datetime, window: float) -> int:
        return max(r.high for r in self.recommendations[-1:] + self._within(now, window))

    def seen_load(self, now: datetime, window: float) -> int:
        """The most that the loads that were seen asked for."""
        return max(r.low for r in self.recommendations[-1:] + self._within(now, window))

    def _within(self, now: datetime, window: float) -> tuple[Recommendation, ...]:
        return tuple(r for r in self.recommendations if _age(r.time, now) < window)

    def change_within(self, now: datetime, seconds: float) -> int:
        """Replicas added less replicas removed in the last seconds."""
        return sum(change for time, change in self.changes if _age(time, now) < seconds)


def _age(then: datetime, now: datetime) -> float:
    return (now - then).total_seconds()

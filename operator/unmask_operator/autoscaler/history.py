"""What the autoscaler remembers of one service. Nothing of it is written anywhere: a restart begins anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

GAP_SECONDS = 60  # a pause of the operator longer than this, and than three polls, makes the past worthless
PATIENCE_SECONDS = 60  # metrics may be missing for so long before ScalingReady says so

# One pod's loads by the targets' names, and its room: those that targets name, and others if it tells.
Reading = Mapping[str, float]


@dataclass(frozen=True)
class Sample:
    """One look at a service. Pods are named; `readings` and `failures` have those that are Ready, and not going."""

    time: datetime
    replicas: int  # `spec.replicas` as it stands
    readings: Mapping[str, Reading] = field(default_factory=dict)  # of the pods that answered
    failures: Mapping[str, str] = field(default_factory=dict)  # why the others did not
    # Seconds that a Ready pod took to load and that one which comes has loaded so far; 0 where it shows none.
    loads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recommendation:
    """Replicas that one look asked for; `complete` when it read every Ready pod."""

    time: datetime
    replicas: int
    complete: bool


@dataclass(frozen=True)
class History:
    since: datetime | None = None  # begin of the unbroken record
    seen: datetime | None = None  # when every Ready pod was last read (or the record's begin)
    warming_up: bool = True  # no look since the record's begin has read every Ready pod
    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[tuple[datetime, int], ...] = ()  # (time, replicas added or removed) that were written
    # Seconds that pods took to load, as they showed when they were first seen Ready.
    loaded: Mapping[str, float] = field(default_factory=dict)
    longest_load: float = 0.0  # of all pods, those included that still load
    last_scale_time: datetime | None = None

    def at(self, now: datetime, polling: float) -> History:
        """This record, or a new one when too much time passed since its last entry (or the clock went back)."""
        if self.recommendations:
            pause = (now - self.recommendations[-1].time).total_seconds()
            if 0 <= pause <= max(GAP_SECONDS, 3 * polling):
                return self
        return History(since=now, seen=now, last_scale_time=self.last_scale_time)

    def with_loads(self, sample: Sample) -> History:
        """A pod that is Ready once more after a pause did not load for as long as its status then says."""
        loads = {pod: self.loaded.get(pod, seconds) for pod, seconds in sample.loads.items()}
        ready = self.loaded.keys() | sample.readings.keys() | sample.failures.keys()
        loaded = {pod: seconds for pod, seconds in loads.items() if pod in ready}
        return replace(self, loaded=loaded, longest_load=max(loads.values(), default=0.0))

    def with_recommendation(self, entry: Recommendation, keep_seconds: float) -> History:
        recent = tuple(r for r in self.recommendations if _age(r.time, entry.time) < keep_seconds)
        seen = entry.time if entry.complete else self.seen
        return replace(
            self, recommendations=(*recent, entry), seen=seen, warming_up=self.warming_up and not entry.complete
        )

    def scaled(self, now: datetime, change: int, keep_seconds: float = 1800) -> History:
        """After a write. autoscaling/v2 allows periods of at most 1800 s, so nothing older matters."""
        recent = tuple(c for c in self.changes if _age(c[0], now) < keep_seconds)
        return replace(self, changes=(*recent, (now, change)), last_scale_time=now)

    def covers(self, now: datetime, seconds: float) -> bool:
        return self.since is not None and _age(self.since, now) >= seconds

    def is_stale(self, now: datetime) -> bool:
        """Some Ready pod has given no metrics for longer than patience lasts."""
        return self.seen is not None and _age(self.seen, now) > PATIENCE_SECONDS

    def within(self, now: datetime, window: float) -> tuple[Recommendation, ...]:
        """The looks of a window; the newest always counts."""
        return self.recommendations[-1:] + tuple(r for r in self.recommendations if _age(r.time, now) < window)

    def change_within(self, now: datetime, seconds: float) -> int:
        """Replicas added less replicas removed in the last seconds."""
        return sum(change for time, change in self.changes if _age(time, now) < seconds)


def _age(then: datetime, now: datetime) -> float:
    return (now - then).total_seconds()

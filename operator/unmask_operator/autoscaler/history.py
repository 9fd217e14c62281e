"""The autoscaler's history of one resource. It is held in memory only, so a restart begins without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

GAP_SECONDS = 60  # a longer pause, which also exceeds three polls, resets the history
PATIENCE_SECONDS = 60  # metrics may be missing this long before ScalingReady becomes False

# Metrics of one pod by the names of targets, and its capacity if it reports one.
Reading = Mapping[str, float]


@dataclass(frozen=True)
class Sample:
    """The metrics of one poll, by pod name. `readings` and `failures` have the Ready pods that are not terminating."""

    time: datetime
    replicas: int  # the current `spec.replicas`
    readings: Mapping[str, Reading] = field(default_factory=dict)  # of pods that answered
    failures: Mapping[str, str] = field(default_factory=dict)  # errors of the other pods
    # Seconds that a Ready pod took to load, or that a starting pod has loaded so far; 0: unknown.
    loads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recommendation:
    """The replicas of one poll; `complete` if it read every Ready pod."""

    time: datetime
    replicas: int
    complete: bool


@dataclass(frozen=True)
class History:
    since: datetime | None = None  # start of the history
    seen: datetime | None = None  # time of the last complete poll, or the start
    warming_up: bool = True  # no poll was complete yet
    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[tuple[datetime, int], ...] = ()  # (time, replicas added or removed)
    # Seconds that pods took to load, as reported when they were first seen Ready.
    loaded: Mapping[str, float] = field(default_factory=dict)
    longest_load: float = 0.0  # of all pods, including those that still load
    last_scale_time: datetime | None = None

    def at(self, now: datetime, polling: float) -> History:
        """Returns this history, or an empty one after a long pause or if the clock went back."""
        if self.recommendations:
            pause = (now - self.recommendations[-1].time).total_seconds()
            if 0 <= pause <= max(GAP_SECONDS, 3 * polling):
                return self
        return History(since=now, seen=now, last_scale_time=self.last_scale_time)

    def with_loads(self, sample: Sample) -> History:
        """Adds load times. The first value of a Ready pod stays, because later ones may include unready phases."""
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
        """Adds a change of replicas. autoscaling/v2 allows periods of at most 1800 s, so older changes are dropped."""
        recent = tuple(c for c in self.changes if _age(c[0], now) < keep_seconds)
        return replace(self, changes=(*recent, (now, change)), last_scale_time=now)

    def covers(self, now: datetime, seconds: float) -> bool:
        return self.since is not None and _age(self.since, now) >= seconds

    def is_stale(self, now: datetime) -> bool:
        """Returns whether no poll was complete for PATIENCE_SECONDS."""
        return self.seen is not None and _age(self.seen, now) > PATIENCE_SECONDS

    def within(self, now: datetime, window: float) -> tuple[Recommendation, ...]:
        """Returns the recommendations of a window, and always the newest one."""
        return self.recommendations[-1:] + tuple(r for r in self.recommendations if _age(r.time, now) < window)

    def change_within(self, now: datetime, seconds: float) -> int:
        """Returns the replicas added minus those removed in the last seconds."""
        return sum(change for time, change in self.changes if _age(time, now) < seconds)


def _age(then: datetime, now: datetime) -> float:
    return (now - then).total_seconds()

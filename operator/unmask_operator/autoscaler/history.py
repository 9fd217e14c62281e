"""Samples and decisions of the autoscaler per resource. They are in memory only and lost on a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from unmask_operator.objects import seconds

GAP_SECONDS = 60  # a longer pause between samples (and longer than three polls) resets the history
PATIENCE_SECONDS = 60  # missing metrics are reported in ScalingReady after this time

# Metrics of a pod: its load by target name, and its optional gauges (EXTRA_GAUGES).
Reading = Mapping[str, float]


@dataclass(frozen=True)
class Sample:
    """One sample of a resource. `readings` and `failures` have the names of the Ready pods that are not terminating."""

    time: datetime
    replicas: int  # current `spec.replicas`
    readings: Mapping[str, Reading] = field(default_factory=dict)  # metrics of scraped pods
    failures: Mapping[str, str] = field(default_factory=dict)  # errors of other Ready pods
    # Model load time in seconds: total for Ready pods, elapsed for starting ones; 0 if unknown.
    loads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recommendation:
    """Replicas that one sample requires; `complete` if it has metrics of every Ready pod."""

    time: datetime
    replicas: int
    complete: bool


@dataclass(frozen=True)
class History:
    """Samples and scaling decisions of one resource since the last gap."""

    since: datetime | None = None  # time of the first sample
    seen: datetime | None = None  # time of the last complete sample, else of the first one
    warming_up: bool = True  # no complete sample yet
    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[tuple[datetime, int], ...] = ()  # (time, added or removed replicas)
    # Model load time in seconds by pod, recorded when the pod was first seen Ready.
    loaded: Mapping[str, float] = field(default_factory=dict)
    longest_load: float = 0.0  # of all pods, including those that still load
    last_scale_time: datetime | None = None

    def at(self, now: datetime, polling: float) -> History:
        """Returns this history, or a new one after a long gap or a backward step of the clock."""
        if self.recommendations:
            pause = seconds(self.recommendations[-1].time, now)
            if 0 <= pause <= max(GAP_SECONDS, 3 * polling):
                return self
        return History(since=now, seen=now, last_scale_time=self.last_scale_time)

    def with_loads(self, sample: Sample) -> History:
        """Records load times. A pod's first value is retained: its status shows a longer one after a readiness gap."""
        loads = {pod: self.loaded.get(pod, load) for pod, load in sample.loads.items()}
        ready = self.loaded.keys() | sample.readings.keys() | sample.failures.keys()
        loaded = {pod: load for pod, load in loads.items() if pod in ready}
        return replace(self, loaded=loaded, longest_load=max(loads.values(), default=0.0))

    def with_recommendation(self, entry: Recommendation, keep_seconds: float) -> History:
        recent = tuple(r for r in self.recommendations if seconds(r.time, entry.time) < keep_seconds)
        seen = entry.time if entry.complete else self.seen
        warming_up = self.warming_up and not entry.complete
        return replace(self, recommendations=(*recent, entry), seen=seen, warming_up=warming_up)

    def scaled(self, now: datetime, change: int, keep_seconds: float = 1800) -> History:
        """Records a change of replicas. Drops older ones: autoscaling/v2 limits policy periods to 1800 s."""
        recent = tuple(c for c in self.changes if seconds(c[0], now) < keep_seconds)
        return replace(self, changes=(*recent, (now, change)), last_scale_time=now)

    def covers(self, now: datetime, window: float) -> bool:
        return self.since is not None and seconds(self.since, now) >= window

    def is_stale(self, now: datetime) -> bool:
        """Returns whether the last complete sample is older than `PATIENCE_SECONDS`."""
        return self.seen is not None and seconds(self.seen, now) > PATIENCE_SECONDS

    def within(self, now: datetime, window: float) -> tuple[Recommendation, ...]:
        """Returns the recommendations within a window, including at least the newest."""
        return self.recommendations[-1:] + tuple(r for r in self.recommendations if seconds(r.time, now) < window)

    def change_within(self, now: datetime, period: float) -> int:
        """Returns the net change of replicas in the last `period` seconds."""
        return sum(change for time, change in self.changes if seconds(time, now) < period)

"""Scale to zero: when a resource is idle, and when it may have no replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from unmask_operator.api.autoscaling import Zero
from unmask_operator.autoscaler.history import GAP_SECONDS, Sample
from unmask_operator.autoscaler.scrape import FINISHED
from unmask_operator.objects import seconds
from unmask_operator.plan.observed import Decision

# Loads of a pod that is not idle.
LOADS = ("queuedRequestsPerReplica", "runningRequestsPerReplica")
NEEDED = (*LOADS, FINISHED)
ROUTED_SECONDS = 2.0  # until proxies know the activator's addresses
ASLEEP = "asleep: there was no request for {} s; the next one adds a replica"
FALLING_ASLEEP = "there was no request for {} s: the activator gets the requests before the last pod ends"
UNAVAILABLE = "ActivatorUnavailable"  # reason of ScalingReady


@dataclass(frozen=True)
class Routing:
    """What the operator knows of the activator.

    Attributes:
        problem: why no pod of it takes requests; "" if one does, or if that is not known yet.
        exists: whether the Service of the resource leads to it.
    """

    problem: str = ""
    exists: bool = False


@dataclass(frozen=True)
class Idleness:
    """Since when the pods of a resource have had no request, by all samples without a gap."""

    since: datetime | None = None  # None: they have requests, or it is not known
    seen: datetime | None = None
    finished: Mapping[str, float] = field(default_factory=dict)  # requests by pod, of the last sample
    routed: datetime | None = None  # since when the Service leads to the activator

    def with_sample(self, sample: Sample, polling: float, routing: Routing) -> Idleness:
        """Adds a sample. A pod that starts or does not answer is not idle.

        Requests that begin and end between two samples show in the number of finished ones.
        """
        gap = self.seen is not None and not 0 <= seconds(self.seen, sample.time) <= max(GAP_SECONDS, 3 * polling)
        finished = {pod: reading.get(FINISHED, 0.0) for pod, reading in sample.readings.items()}
        had_requests = any(self.finished.get(pod, count) != count for pod, count in finished.items())
        loaded = any(reading.get(load, 1.0) for reading in sample.readings.values() for load in LOADS)
        idle = bool(finished) and finished.keys() == sample.loads.keys() and not loaded
        since = (sample.time if self.since is None or gap or had_requests else self.since) if idle else None
        routed = (self.routed or sample.time) if routing.exists else None
        return Idleness(since, sample.time, finished, routed)


def decide(zero: Zero, sample: Sample, idleness: Idleness, routing: Routing, awake: Decision | None) -> Decision:
    """Decides whether the resource has no replicas.

    The activator gets the requests first. Replicas are removed when proxies know that, so no request is refused. The
    last replica stays, or returns, if no pod of the activator takes requests.

    Args:
        zero: the settings.
        sample: the current sample.
        idleness: includes the sample.
        routing: the state of the activator.
        awake: the decision by load; None with 0 replicas.
    """
    if awake is None:
        if routing.problem:
            return Decision(1, routing.problem, False, cause=UNAVAILABLE)
        return Decision(0, ASLEEP.format(zero.idle_seconds), True, idle=True)
    if routing.problem:
        return replace(awake, reason=routing.problem, healthy=False, cause=UNAVAILABLE)
    if idleness.since is None or seconds(idleness.since, sample.time) < zero.idle_seconds:
        return awake
    if idleness.routed is None or seconds(idleness.routed, sample.time) < ROUTED_SECONDS:
        return replace(awake, reason=FALLING_ASLEEP.format(zero.idle_seconds), idle=True)
    return replace(awake, desired=0, reason=ASLEEP.format(zero.idle_seconds), idle=True)

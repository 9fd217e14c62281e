"""One decision of the builtin autoscaler: a pure function of the rules, a look at the pods, and the past."""

import math

from unmask_operator.autoscaler.history import History, Reading, Recommendation, Sample
from unmask_operator.autoscaler.rules import TOLERANCE, Rules, down_limit, up_limit
from unmask_operator.plan.observed import Decision

# Sentences for status.autoscaling.reason. They hold no live figure: the status is written when a decision changes, not
# at every look.
FITS = "the load fits the replicas"
IDLE = "minReplicas are enough for the load"
FULL = "the load asks for more than maxReplicas"
OUT_OF_BOUNDS = "spec.replicas was outside minReplicas and maxReplicas"
NOT_READY = "no pod is Ready: replicas are kept until one shows its load"
DOWN = "scaled down: the whole stable window needed fewer"
UP_LIMITED = "more replicas are wanted: behavior.scaleUp lets no more be added now"
DOWN_LIMITED = "fewer replicas would do: behavior.scaleDown lets no more go now"
YOUNG = "fewer replicas would do: they are kept until one stable window has been watched since the operator's start"
PARTIAL = "fewer replicas may do: they are kept while Ready pods show no metrics"

# A replica that was added is worth keeping for as long as it took to come: else bursts would start and end replicas
# that never serve.
LOAD_TIME_FACTOR = 2
ROUNDING = 1e-9  # sums of ratios carry errors that must not cost a replica


def decide(rules: Rules, sample: Sample, history: History) -> tuple[Decision, History]:
    """The replicas wanted now and the past with this look in it.

    Each target asks for ceil(sum over the pods / target) replicas, the greatest counts. A Ready pod without metrics,
    which may be too busy to answer, counts as fully loaded; pods that are not Ready are part of the replicas without
    adding load. Replicas that what runs fills are kept, whatever the targets are.

    Up: the least of the panic window's looks. Down: the most of the stable window's looks, and never while a pod's
    metrics are missing. The stable window is no shorter than twice the longest load.
    """
    now = sample.time
    history = history.at(now, rules.polling).with_loads(sample)
    base = rules.clamp(sample.replicas)
    stable = max(rules.down.window, LOAD_TIME_FACTOR * history.longest_load)
    recommendation = Recommendation(now, _needed(rules, sample, base), not sample.failures)
    history = history.with_recommendation(recommendation, max(rules.up.window, stable, 1))

    lowest = rules.clamp(min(recommendation.replicas for recommendation in history.within(now, rules.up.window)))
    highest = rules.clamp(max(recommendation.replicas for recommendation in history.within(now, stable)))
    if lowest > base:
        desired = min(lowest, up_limit(base, rules.up, history, now))
        reason = UP_LIMITED if desired == base else f"scaled up for {_driver(rules, sample)}"
    elif highest < base:
        desired, reason = _down(rules, sample, history, base, highest, stable)
    else:
        desired, reason = base, _at_rest(rules, sample, history, base, stable)
    if desired == base != sample.replicas:
        reason = OUT_OF_BOUNDS

    healthy = True
    if sample.failures and history.is_stale(now):
        pod, cause = min(sample.failures.items())
        healthy, reason = False, f"{PARTIAL}: {pod}: {cause}"
    return Decision(desired, reason, healthy, history.last_scale_time), history


def _down(rules: Rules, sample: Sample, history: History, base: int, highest: int, stable: float) -> tuple[int, str]:
    """Fewer replicas if nothing speaks against it."""
    if sample.failures:
        return base, PARTIAL
    if not history.covers(sample.time, stable):
        return base, YOUNG
    desired = max(highest, down_limit(base, rules.down, history, sample.time))
    return desired, DOWN_LIMITED if desired == base else DOWN


def _at_rest(rules: Rules, sample: Sample, history: History, base: int, stable: float) -> str:
    if not sample.readings and not sample.failures:
        return NOT_READY
    if history.recommendations[-1].replicas > rules.maximum:
        return FULL
    seen = (
        recommendation.replicas for recommendation in history.within(sample.time, stable) if recommendation.complete
    )
    if max(seen, default=0) < base:
        return IDLE if base == rules.minimum else PARTIAL  # only pods that were not seen speak for the size
    return FITS


def _needed(rules: Rules, sample: Sample, base: int) -> int:
    """Replicas by the load. Without a Ready pod: those there are."""
    if not (sample.readings or sample.failures):
        return base
    return max(_in_use(sample, base), *(_need(*load, base) for load in _loads(rules, sample).values()))


def _in_use(sample: Sample, base: int) -> int:
    """Of the replicas there are, those that what runs now fills, by its number and by its share of the caches.

    A queue alone is empty while there are just enough replicas: without this they would go, and come back.
    """
    running = sum(map(_utilization, sample.readings.values()))
    cached = sum(reading.get("kvCacheUtilizationPercent", 0.0) for reading in sample.readings.values()) / 100
    return min(math.ceil(max(running, cached) - ROUNDING) + len(sample.failures), base)


def _utilization(reading: Reading) -> float:
    """The share of a pod's places that is taken. Only the pod knows how many it has, by whatever way they were set; one
    that does not tell, as an older runtime, is full with any request."""
    running, capacity = reading.get("runningRequestsPerReplica", 0.0), reading.get("room", 0.0)
    return running / capacity if capacity else float(running > 0)


def _loads(rules: Rules, sample: Sample) -> dict[str, tuple[float, float]]:
    """The load of all pods and the target, by the target's name."""
    return {
        name: (sum(reading[name] for reading in sample.readings.values()) + len(sample.failures) * target, target)
        for name, target in rules.targets.items()
    }


def _need(load: float, target: float, base: int) -> int:
    needed = load / target
    if abs(needed - base) <= TOLERANCE * base:
        return base
    return math.ceil(needed - ROUNDING)


def _driver(rules: Rules, sample: Sample) -> str:
    """The target that asks for most."""
    loads = _loads(rules, sample)
    return max(loads, key=lambda name: loads[name][0] / loads[name][1])

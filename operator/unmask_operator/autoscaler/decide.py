"""One decision of the builtin autoscaler: a pure function of the rules, the pods' metrics and the history."""

import math

from unmask_operator.autoscaler.history import History, Reading, Recommendation, Sample
from unmask_operator.autoscaler.rules import TOLERANCE, Rules, down_limit, up_limit
from unmask_operator.plan.observed import Decision

# Messages of status.autoscaling.reason. They have no current figures, because the status is written when a decision
# changes and not at every poll.
FITS = "the load fits the replicas"
IDLE = "minReplicas are enough for the load"
FULL = "the load needs more than maxReplicas"
OUT_OF_BOUNDS = "spec.replicas was outside minReplicas and maxReplicas"
NOT_READY = "no pod is Ready: replicas stay until a pod reports its load"
DOWN = "scaled down: the whole stable window needed fewer"
UP_LIMITED = "more replicas are needed: behavior.scaleUp allows no more now"
DOWN_LIMITED = "fewer replicas are needed: behavior.scaleDown allows no fewer now"
YOUNG = "fewer replicas are needed: they stay for one stable window after the operator's start"
PARTIAL = "fewer replicas may be enough: they stay while metrics of Ready pods are missing"

# Factor of the longest load time for the stable window. Otherwise bursts would start and end replicas that never serve.
LOAD_TIME_FACTOR = 2
ROUNDING = 1e-9  # a rounding error of sums must not add a replica


def decide(rules: Rules, sample: Sample, history: History) -> tuple[Decision, History]:
    """Returns the decision and the history with this poll.

    Each target needs ceil(sum over the pods / target) replicas, and the highest number counts. A Ready pod without
    metrics may be too busy to answer and counts as fully loaded. Pods that are not Ready count as replicas without
    load. Replicas that running requests fill are not removed, for any target.

    Scaling up uses the lowest recommendation of the panic window. Scaling down uses the highest of the stable window,
    and does not happen while metrics are missing. The stable window is at least twice the longest load time.
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
    """Returns fewer replicas if metrics, history and policies allow it, and the reason."""
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
        return IDLE if base == rules.minimum else PARTIAL  # only pods without metrics need them
    return FITS


def _needed(rules: Rules, sample: Sample, base: int) -> int:
    """Returns the replicas that the load needs, or the current ones without a Ready pod."""
    if not (sample.readings or sample.failures):
        return base
    return max(_in_use(sample, base), *(_need(*load, base) for load in _loads(rules, sample).values()))


def _in_use(sample: Sample, base: int) -> int:
    """Returns how many replicas running requests fill, by their number and by their KV cache.

    With exactly enough replicas the queue is empty. Without this value they would be removed and added again.
    """
    running = sum(map(_utilization, sample.readings.values()))
    cached = sum(reading.get("kvCacheUtilizationPercent", 0.0) for reading in sample.readings.values()) / 100
    return min(math.ceil(max(running, cached) - ROUNDING) + len(sample.failures), base)


def _utilization(reading: Reading) -> float:
    """Returns the running requests of a pod relative to its capacity.

    A pod without a reported capacity, as of an older runtime, counts as full with any request.
    """
    running, capacity = reading.get("runningRequestsPerReplica", 0.0), reading.get("room", 0.0)
    return running / capacity if capacity else float(running > 0)


def _loads(rules: Rules, sample: Sample) -> dict[str, tuple[float, float]]:
    """Returns the load of all pods and the target value, by the target's name."""
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
    """Returns the target that needs the most replicas."""
    loads = _loads(rules, sample)
    return max(loads, key=lambda name: loads[name][0] / loads[name][1])

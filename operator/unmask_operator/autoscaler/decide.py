"""Scaling decisions: a pure function of the rules, a sample of the pods' metrics, and the history."""

import math

from unmask_operator.autoscaler.history import History, Reading, Recommendation, Sample
from unmask_operator.autoscaler.rules import TOLERANCE, Rules, limit
from unmask_operator.plan.observed import Decision

# Messages of status.autoscaling.reason. They contain no metric values: the status is written when a decision changes,
# not for every sample.
FITS = "the load matches the number of replicas"
IDLE = "minReplicas is sufficient for the load"
FULL = "the load requires more than maxReplicas"
OUT_OF_BOUNDS = "spec.replicas was {}, outside minReplicas and maxReplicas"
NOT_READY = "replicas unchanged: no Ready pod reports its load"
DOWN = "scaled down: all samples in the stable window required fewer replicas"
UP_WAITS = "scale-up deferred: behavior.scaleUp.stabilizationWindowSeconds has not passed since the load required more"
UP_LIMITED = "scale-up limited by behavior.scaleUp"
DOWN_LIMITED = "scale-down limited by behavior.scaleDown"
YOUNG = "scale-down deferred: the operator has observed less than one stable window since its start"
PARTIAL = "scale-down deferred: Ready pods without metrics"

# Minimum stable window, in units of the longest model load time. A shorter window would remove replicas before they
# serve a burst.
LOAD_TIME_FACTOR = 2
ROUNDING = 1e-9  # floating-point error that must not add a replica


def decide(rules: Rules, sample: Sample, history: History) -> tuple[Decision, History]:
    """Decides the desired replicas.

    Each target requires ceil(sum over the pods / target) replicas; the maximum applies. A Ready pod without metrics may
    be overloaded and counts as fully loaded. Pods that are not Ready count as replicas without load. Replicas that
    running requests occupy are retained regardless of the targets.

    Scale-up uses the lowest recommendation in the window of scaleUp. Scale-down uses the highest one in the stable
    window, and waits while a Ready pod has no metrics. The stable window is at least twice the longest model load time.
    Both windows begin with the first sample. Replicas outside the bounds are set to the bound, whatever the load.

    Returns:
        The decision, and the history with this sample.
    """
    now = sample.time
    history = history.at(now, rules.polling).with_loads(sample)
    base = rules.clamp(sample.replicas)
    stable = max(rules.down.window, LOAD_TIME_FACTOR * history.longest_load)
    recommendation = Recommendation(now, _needed(rules, sample, base), not sample.failures)
    history = history.with_recommendation(recommendation, max(rules.up.window, stable, 1))

    lowest = rules.clamp(min(recommendation.replicas for recommendation in history.within(now, rules.up.window)))
    highest = rules.clamp(max(recommendation.replicas for recommendation in history.within(now, stable)))
    if base != sample.replicas:
        desired, reason = base, OUT_OF_BOUNDS.format(sample.replicas)
    elif lowest > base and history.covers(now, rules.up.window):
        desired = min(lowest, limit(base, rules.up, history, now, up=True))
        reason = UP_LIMITED if desired == base else f"scaled up for {_driver(rules, sample)}"
    elif highest < base:
        desired, reason = _down(rules, sample, history, base, highest, stable)
    else:
        desired, reason = base, _at_rest(rules, sample, history, base, stable)

    healthy = True
    if sample.failures and history.is_stale(now):
        pod, cause = min(sample.failures.items())
        healthy, reason = False, f"{PARTIAL}: {pod}: {cause}"
    return Decision(desired, reason, healthy, history.last_scale_time), history


def _down(rules: Rules, sample: Sample, history: History, base: int, highest: int, stable: float) -> tuple[int, str]:
    """Returns the replicas and the reason if the stable window requires fewer than `base`."""
    if sample.failures:
        return base, PARTIAL
    if not history.covers(sample.time, stable):
        return base, YOUNG
    desired = max(highest, limit(base, rules.down, history, sample.time, up=False))
    return desired, DOWN_LIMITED if desired == base else DOWN


def _at_rest(rules: Rules, sample: Sample, history: History, base: int, stable: float) -> str:
    if not sample.readings and not sample.failures:
        return NOT_READY
    if history.recommendations[-1].replicas > base:
        return FULL if base == rules.maximum else UP_WAITS
    seen = (one.replicas for one in history.within(sample.time, stable) if one.complete)
    if max(seen, default=0) < base:
        return IDLE if base == rules.minimum else PARTIAL  # only unread pods justify the current size
    return FITS


def _needed(rules: Rules, sample: Sample, base: int) -> int:
    """Returns the replicas that the load requires; the current number without a Ready pod."""
    if not (sample.readings or sample.failures):
        return base
    return max(_in_use(sample, base), *(_need(*load, base) for load in _loads(rules, sample).values()))


def _in_use(sample: Sample, base: int) -> int:
    """Returns the replicas that running requests occupy, by their number and by KV cache utilization.

    Queues are empty while there are just enough replicas. Without this lower bound, replicas would oscillate.
    """
    running = sum(map(_utilization, sample.readings.values()))
    cached = sum(reading.get("kvCacheUtilizationPercent", 0.0) for reading in sample.readings.values()) / 100
    return min(math.ceil(max(running, cached) - ROUNDING) + len(sample.failures), base)


def _utilization(reading: Reading) -> float:
    """Returns the fraction of a pod's request slots in use.

    Only the pod knows its maximum number of running requests. An older runtime does not report it and counts as full
    with any request, and so does a pod that reports less than one.
    """
    running, capacity = reading.get("runningRequestsPerReplica", 0.0), reading.get("max_running", 0.0)
    return running / capacity if capacity >= 1 else float(running > 0)


def _loads(rules: Rules, sample: Sample) -> dict[str, tuple[float, float]]:
    """Returns the total load of the pods and the target, by target name."""
    return {
        name: (sum(reading[name] for reading in sample.readings.values()) + len(sample.failures) * target, target)
        for name, target in rules.targets.items()
    }


def _need(load: float, target: float, base: int) -> int:
    """Returns the replicas for a load. In thousandths, as in the HPA controller, sums have no rounding errors."""
    usage, per_replica = round(load * 1000), round(target * 1000)
    if 1 - TOLERANCE <= usage / (per_replica * base) <= 1 + TOLERANCE:
        return base
    return math.ceil(usage / per_replica)


def _driver(rules: Rules, sample: Sample) -> str:
    """Returns the name of the target that requires the most replicas."""
    loads = _loads(rules, sample)
    return max(loads, key=lambda name: loads[name][0] / loads[name][1])

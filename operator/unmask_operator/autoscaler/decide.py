"""One decision of the builtin autoscaler: a pure function of the rules, a look at the pods, and the past."""

from __future__ import annotations

import math

from unmask_operator.autoscaler.history import History, Recommendation, View
from unmask_operator.autoscaler.limits import down_limit, up_limit
from unmask_operator.autoscaler.rules import TARGETS, TOLERANCE, Rules
from unmask_operator.state.observed import Decision

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
NO_TARGETS = "autoscaling.targets is empty: set one of " + ", ".join(TARGETS)


def decide(rules: Rules, view: View, history: History) -> tuple[Decision, History]:
    """The replicas wanted now and the past with this look in it.

    Each target asks for ceil(sum over the pods / target) replicas, the greatest counts; pods that are not Ready are
    part of the replicas without adding load. Up: the least of the panic window's looks. Down: the most of the stable
    window's looks, in which a Ready pod without metrics counts as fully loaded, and never while one is missing now.
    """
    now = view.time
    history = history.at(now, rules.polling)
    base = rules.clamp(view.replicas)
    complete = not view.failures
    look = Recommendation(now, *_needs(rules, view, base))
    history = history.with_recommendation(look, complete, max(rules.up.window, rules.down.window, 1))

    least, most = rules.clamp(history.low(now, rules.up.window)), rules.clamp(history.high(now, rules.down.window))
    if least > base:
        desired = min(least, up_limit(base, rules.up, history, now))
        reason = UP_LIMITED if desired == base else f"scaled up for {_driver(rules, view)}"
    elif most < base:
        desired, reason = _down(rules, view, history, base, most)
    else:
        desired, reason = base, _at_rest(rules, view, history, base)
    if desired == base != view.replicas:
        reason = OUT_OF_BOUNDS

    healthy = True
    if not rules.targets:
        healthy, reason = False, NO_TARGETS
    elif view.failures and history.blind(now):
        pod, cause = min(view.failures.items())
        healthy, reason = False, f"{PARTIAL}: {pod}: {cause}"
    return Decision(desired, reason, healthy, history.last_scale_time), history


def _down(rules: Rules, view: View, history: History, base: int, most: int) -> tuple[int, str]:
    """Fewer replicas if nothing speaks against it."""
    if view.failures:
        return base, PARTIAL
    if not history.covers(view.time, rules.down.window):
        return base, YOUNG
    desired = max(most, down_limit(base, rules.down, history, view.time))
    return desired, DOWN_LIMITED if desired == base else DOWN


def _at_rest(rules: Rules, view: View, history: History, base: int) -> str:
    if not view.readings and not view.failures:
        return NOT_READY
    if history.recommendations[-1].low > rules.maximum:
        return FULL
    seen = history.seen_load(view.time, rules.down.window)
    if seen < base:
        return IDLE if base == rules.minimum else PARTIAL  # only pods that were not seen speak for the size
    return FITS


def _needs(rules: Rules, view: View, base: int) -> tuple[int, int]:
    """Replicas by the load seen, and with every unseen pod at its target. Without a Ready pod: those there are."""
    if not rules.targets or not (view.readings or view.failures):
        return base, base
    unseen = len(view.failures)
    low = max(_need(load, target, base) for load, target in _loads(rules, view))
    high = max(_need(load + unseen * target, target, base) for load, target in _loads(rules, view))
    return low, high


def _loads(rules: Rules, view: View) -> list[tuple[float, float]]:
    return [
        (sum(getattr(reading, TARGETS[name]) for reading in view.readings.values()), target)
        for name, target in rules.targets.items()
    ]


def _need(load: float, target: float, base: int) -> int:
    needed = load / target
    if abs(needed - base) <= TOLERANCE * base:
        return base
    return math.ceil(needed - 1e-9)  # sums of ratios carry rounding errors that must not cost a replica


def _driver(rules: Rules, view: View) -> str:
    """The target that asks for most."""
    loads = dict(zip(rules.targets, _loads(rules, view), strict=True))
    return max(loads, key=lambda name: loads[name][0] / loads[name][1])

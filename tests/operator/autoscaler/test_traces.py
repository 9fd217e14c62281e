"""Tests of the autoscaler over long traces of load."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.operator.autoscaler.simulation import START, Simulation
from unmask_operator.autoscaler import decide as reasons
from unmask_operator.autoscaler.decide import decide
from unmask_operator.autoscaler.history import History, Sample
from unmask_operator.autoscaler.rules import UP, Direction, Rules

RULES = Rules(1, 8, {"queuedRequestsPerReplica": 10}, polling=15)
HPA = json.loads((Path(__file__).parent / "hpa.json").read_text(encoding="utf-8"))


def test_a_burst_scales_up_immediately_and_down_after_the_stable_window() -> None:
    sim = Simulation(RULES).run(300, lambda t: 75 if 60 <= t < 90 else 5)
    assert [size for (t, *_), size in zip(sim.trace, sim.sizes, strict=True) if t == 60] == [5]  # limit: 4 pods in 15 s
    assert max(sim.sizes) == 8
    assert sim.replicas == 8
    sim.run(120, 5)
    assert sim.replicas == 1


def test_a_burst_shorter_than_the_window_of_scale_up_is_ignored() -> None:
    rules = Rules(1, 8, RULES.targets, up=Direction(60, UP.policies[1:]), polling=15)
    assert max(Simulation(rules).run(300, lambda t: 75 if 120 <= t < 165 else 5).sizes) == 1
    assert max(Simulation(rules).run(300, lambda t: 75 if 120 <= t < 200 else 5).sizes) > 1


def test_a_pod_that_never_gets_ready_counts_but_does_not_prevent_scaling() -> None:
    sim = Simulation(RULES, replicas=3, broken=1)
    sim.run(60, 30)
    assert set(sim.sizes) == {3}  # 30 requests wait at two pods; the third pod counts as starting
    sim.run(60, 55)
    assert sim.replicas == 6
    sim.run(600, 5)
    assert sim.replicas == 1


def test_the_reason_names_the_field_that_delays_growth() -> None:
    sim = Simulation(replace(RULES, up=replace(RULES.up, window=60)), replicas=2)
    sim.run(90, lambda second: 20 if second < 60 else 1000)
    reasons_seen = [decision.reason for _, _, decision, _ in sim.trace]
    assert reasons_seen == [reasons.FITS] * 4 + [reasons.UP_WAITS] * 2  # also of a load above maxReplicas
    assert "behavior.scaleUp.stabilizationWindowSeconds" in reasons.UP_WAITS
    sim.run(60, 40)
    assert sim.replicas == 4
    assert "scaled up for queuedRequestsPerReplica" in {decision.reason for _, _, decision, _ in sim.trace}


@pytest.mark.parametrize(("startup", "window"), [(20, 300), (600, 1200)])
def test_a_restart_of_the_operator_waits_one_stable_window_before_it_shrinks(startup: float, window: float) -> None:
    """The window is at least twice the load time."""
    sim = Simulation(RULES, replicas=5, startup=startup).run(285, 5)
    sim.restart()
    sim.run(window, 5)
    assert set(sim.sizes) == {5}
    assert sim.trace[-1][2].reason == reasons.YOUNG
    sim.run(15, 5)
    assert sim.replicas == 1


def test_loading_replicas_are_not_removed_before_they_serve() -> None:
    """The recorded load time of the Ready pod, 0 s, does not reveal the real one of 1800 s."""
    sim = Simulation(RULES)
    sim.startup = 1800
    sim.births = [0 - 1800.0]
    sim.history = sim.history.at(START, 15)
    sim.history = replace(sim.history, loaded={"0": 0.0})
    sim.run(1800, lambda t: 30 if t < 60 else 0)
    assert sim.replicas == 3
    sim.run(1890, 0)
    assert sim.replicas == 1


def test_the_load_time_of_a_pod_does_not_change_when_it_becomes_ready_again() -> None:
    view = Sample(START, 1, {"a": {}}, loads={"a": 20})
    later = Sample(START, 1, {"a": {}}, loads={"a": 3000})
    history = History().with_loads(view).with_loads(Sample(START, 1, loads={"a": 2000})).with_loads(later)
    assert history.longest_load == 20


def test_a_long_pause_of_the_operator_counts_as_a_restart_which_does_not_delay_growth() -> None:
    sim = Simulation(RULES, replicas=5).run(60, 50)
    sim.second += 3600
    sim.run(285, 5)
    assert sim.replicas == 5
    sim.restart()
    assert sim.look(100).desired == 8


def test_bounds_apply_immediately_also_without_data() -> None:
    sim = Simulation(Rules(2, 4, RULES.targets), replicas=7, broken=7)
    assert sim.look(0).desired == 4
    sim.resize(1)
    assert sim.look(0).desired == 2
    assert sim.trace[-1][2].reason.startswith("spec.replicas was ")
    sim = Simulation(RULES, replicas=3, broken=3).run(900, 100)
    assert set(sim.sizes) == {3}
    assert sim.trace[-1][2].reason == reasons.NOT_READY


ALL = Rules(1, 9, {"queuedRequestsPerReplica": 50, "runningRequestsPerReplica": 5, "kvCacheUtilizationPercent": 60})


@pytest.mark.parametrize(
    ("rules", "replicas", "missing", "load", "kv", "desired", "reason"),
    [
        (RULES, 4, (), 40, 0, 4, reasons.FITS),
        (RULES, 4, (), 43, 0, 4, reasons.FITS),  # within the tolerance
        (RULES, 4, (), 45, 0, 5, "scaled up for queuedRequestsPerReplica"),
        (RULES, 8, (), 200, 0, 8, reasons.FULL),
        (RULES, 1, (), 0, 0, 1, reasons.IDLE),
        (replace(RULES, up=Direction(0, (), "Disabled")), 2, (), 60, 0, 2, reasons.UP_LIMITED),
        # the greatest of several targets: the running requests need 8, and two pods may become 6 in 15 s
        (ALL, 2, (), 40, 90, 6, "scaled up for runningRequestsPerReplica"),
        (ALL, 2, (), 2, 90, 3, "scaled up for kvCacheUtilizationPercent"),
        # Pods without an answer may be too busy, and count as loaded. Half of the load is in the metrics.
        (RULES, 2, (0,), 60, 0, 4, "scaled up for queuedRequestsPerReplica"),
        (RULES, 3, (1, 2), 90, 0, 5, "scaled up for queuedRequestsPerReplica"),
        (RULES, 3, (0, 1, 2), 90, 0, 3, reasons.PARTIAL),
    ],
)
def test_one_decision(rules, replicas, missing, load, kv, desired, reason):
    sim = Simulation(rules, replicas=replicas, missing=lambda pod, second: pod in missing)
    decision = sim.look(load, kv_percent=kv)
    assert (decision.desired, decision.reason) == (desired, reason)


@pytest.mark.parametrize(
    ("running", "kv", "max_running", "replicas"),
    [
        (32, 0, 8, 4), (17, 0, 8, 3), (16, 0, 8, 2),
        (1, 0, 0, 4),  # an older runtime does not report its limit, and is full with any request
        (1, 0, 0.5, 4), (0, 0, 0, 1),
        (0, 60, 8, 3),  # per cent of each KV cache
        (9, 60, 8, 3),
    ],
)  # fmt: skip
def test_replicas_that_running_requests_occupy_stay_although_no_request_waits(running, kv, max_running, replicas):
    """The limit comes from the metrics of the pods. The spec may be overridden."""
    sim = Simulation(RULES, replicas=4, max_running=max_running)
    for _ in range(22):
        sim.look(0, kv, running)
        sim.second += RULES.polling
    assert sim.replicas == replicas


def _scaling_rules(row):
    """Returns `behavior.scaleUp` or `behavior.scaleDown` of a row of hpa.json; null stands for an absent field."""
    if row is None:
        return None
    window, select, policies = row
    limits = policies and [dict(zip(("type", "value", "periodSeconds"), policy, strict=True)) for policy in policies]
    return {"stabilizationWindowSeconds": window, "selectPolicy": select, "policies": limits}


@pytest.mark.parametrize("number", range(len(HPA)))
def test_decisions_are_those_of_the_hpa_controller(number):
    """Compares sequences of decisions, so that `behavior` and its bounds mean what they mean in autoscaling/v2.

    The results in hpa.json come from the HPA controller of Kubernetes 1.34.4: from reconcileAutoscaler of package
    pkg/controller/podautoscaler, called with a simulated clock, fake clients, an external metric with an average
    value, and the defaults of package pkg/apis/autoscaling/v2. The inputs are seeded: loads at both tolerances and a
    thousandth beyond, percentages whose products round differently in float64, and random loads under random rules.

    A row has minReplicas, maxReplicas, the target, scaleUp, scaleDown, and steps: seconds since the previous step,
    replicas before, load, replicas after. docs/developer/operator-architecture.md#packages lists the cases in which the
    operator differs on purpose. No row has one.
    """
    minimum, maximum, target, up, down, steps = HPA[number]
    scaling = {"minReplicas": minimum, "maxReplicas": maximum, "targets": {"queuedRequestsPerReplica": target}}
    behavior = {"scaleUp": _scaling_rules(up), "scaleDown": _scaling_rules(down)}
    rules = Rules.read({"autoscaling": scaling | {"behavior": behavior}})
    history, time = History(), START
    for step in steps:
        seconds, replicas, load, expected = step
        time += timedelta(seconds=seconds)
        decision, history = decide(rules, Sample(time, replicas, {"pod": {"queuedRequestsPerReplica": load}}), history)
        assert decision.desired == expected, step
        if expected != replicas:
            history = history.scaled(time, expected - replicas)

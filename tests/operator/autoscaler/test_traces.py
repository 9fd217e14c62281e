"""Tests of the autoscaler over long traces of load."""

from dataclasses import replace

import pytest

from tests.operator.autoscaler.simulation import START, Simulation
from unmask_operator.autoscaler import decide as reasons
from unmask_operator.autoscaler.history import History, Sample
from unmask_operator.autoscaler.rules import Direction, Policy, Rules, down_limit, up_limit

RULES = Rules(1, 8, {"queuedRequestsPerReplica": 10}, polling=15)


def test_a_burst_scales_up_immediately_and_down_after_the_stable_window() -> None:
    sim = Simulation(RULES).run(300, lambda t: 75 if 60 <= t < 90 else 5)
    assert [size for (t, *_), size in zip(sim.trace, sim.sizes, strict=True) if t == 60] == [5]  # limit: 4 pods in 15 s
    assert max(sim.sizes) == 8
    assert sim.replicas == 8
    sim.run(120, 5)
    assert sim.replicas == 1


def test_the_panic_window_ignores_a_burst_that_is_shorter() -> None:
    rules = Rules(1, 8, RULES.targets, up=Direction(60, (Policy("Percent", 100, 15),)), polling=15)
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


@pytest.mark.parametrize(
    ("up", "seconds", "expected"),
    [
        (Direction(0, (Policy("Pods", 1, 60),)), 179, 4),
        (Direction(0, (Policy("Percent", 50, 60),)), 179, 5),  # 1, 2, 3, 5
        (Direction(0, (Policy("Pods", 3, 60), Policy("Percent", 50, 60)), "Min"), 119, 3),
        (Direction(0, (Policy("Pods", 3, 60),), "Disabled"), 600, 1),
    ],
)
def test_policies_limit_growth(up: Direction, seconds: float, expected: int) -> None:
    sim = Simulation(Rules(1, 50, RULES.targets, up=up, polling=15)).run(seconds, 400)
    assert sim.replicas == expected
    assert sim.trace[-1][2].reason == reasons.UP_LIMITED


@pytest.mark.parametrize(
    ("down", "expected"),
    [
        (Direction(60, (Policy("Pods", 1, 60),)), 7),
        (Direction(60, (Policy("Percent", 50, 60),)), 1),  # 10, 5, 2, 1
        (Direction(60, (Policy("Percent", 50, 60), Policy("Pods", 1, 60)), "Min"), 7),
        (Direction(60, (), "Disabled"), 10),
    ],
)
def test_policies_limit_shrinking(down: Direction, expected: int) -> None:
    sim = Simulation(Rules(1, 10, RULES.targets, down=down, polling=15), replicas=10).run(60 * 3 + 15, 0)
    assert sim.replicas == expected


def test_bounds_apply_immediately_also_without_data() -> None:
    sim = Simulation(Rules(2, 4, RULES.targets), replicas=7, broken=7)
    assert sim.look(0).desired == 4
    sim.resize(1)
    assert sim.look(0).desired == 2
    assert sim.trace[-1][2].reason == reasons.OUT_OF_BOUNDS
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
        (32, 0, 8, 4),
        (17, 0, 8, 3),
        (16, 0, 8, 2),
        (1, 0, 0, 4),  # an older runtime does not report its limit, and is full with any request
        (1, 0, 0.5, 4),
        (0, 0, 0, 1),
        (0, 60, 8, 3),  # per cent of each KV cache
        (9, 60, 8, 3),
    ],
)
def test_replicas_that_running_requests_occupy_stay_although_no_request_waits(running, kv, max_running, replicas):
    """The limit comes from the metrics of the pods. The spec may be overridden."""
    sim = Simulation(RULES, replicas=4, max_running=max_running)
    for _ in range(22):
        sim.look(0, kv, running)
        sim.second += RULES.polling
    assert sim.replicas == replicas


# By the formulas of the HPA controller of Kubernetes 1.34.4 in float64: replicas, percent, limits up and down.
PERCENT = [
    (100, 10, 111, 90),
    (10, 80, 18, 1),
    (10, 10, 11, 9),
    (1, 1, 2, 0),
    (3, 33, 4, 2),
    (50, 10, 56, 45),
    (7, 100, 14, 0),
]


@pytest.mark.parametrize(("replicas", "percent", "up", "down"), PERCENT)
def test_percentages_are_rounded_as_by_the_hpa_controller(replicas, percent, up, down):
    direction = Direction(0, (Policy("Percent", percent, 60),))
    assert up_limit(replicas, direction, History(), START) == up
    assert down_limit(replicas, direction, History(), START) == down


@pytest.mark.parametrize("base", range(1, 40))
def test_a_load_at_the_tolerance_changes_nothing(base):
    for percent, stays in ((110, True), (111, False), (90, True), (89, base < 10)):
        assert (reasons._need(base * percent / 100, 1, base) == base) is stays, percent

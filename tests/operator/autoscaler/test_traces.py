"""Tests of the autoscaler over long traces of load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.operator.autoscaler.simulation import START, Simulation
from unmask_operator.autoscaler import decide as reasons
from unmask_operator.autoscaler.history import History, Sample
from unmask_operator.autoscaler.rules import Direction, Policy, Rules

RULES = Rules(1, 8, {"queuedRequestsPerReplica": 10}, polling=15)


def test_replicas_stay_constant_under_a_steady_load() -> None:
    sim = Simulation(RULES).run(1800, 35)
    assert sim.sizes[0] == 4
    assert set(sim.sizes[1:]) == {4}
    assert sim.trace[-1][2].reason == reasons.FITS


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


def test_load_that_flaps_within_the_stable_window_never_shrinks_the_service() -> None:
    sim = Simulation(RULES).run(3600, lambda t: 60 if int(t / 60) % 2 else 2)
    grown = sim.sizes.index(6)
    assert set(sim.sizes[grown:]) == {6}


def test_missing_scrapes_prevent_scaling_down_until_they_end() -> None:
    sim = Simulation(RULES, missing=lambda pod, second: pod == 3 and second < 900)
    sim.resize(4)
    sim.births = [-1e9] * 4
    sim.run(900, 0)
    assert set(sim.sizes) == {4}
    last = sim.trace[-1][2]
    assert not last.healthy
    assert last.reason == f"{reasons.PARTIAL}: 3: no answer"
    sim.run(30, 0)
    assert sim.replicas == 1
    assert sim.trace[-1][2].healthy


def test_intermittent_scrape_failures_delay_but_do_not_prevent_scaling_down() -> None:
    sim = Simulation(RULES, replicas=4, missing=lambda pod, second: second / 15 % 5 == pod)
    sim.run(600, 0)
    assert sim.replicas == 1
    assert all(decision.healthy for _, _, decision, _ in sim.trace)


def test_polls_without_any_scrape_count_as_full_load() -> None:
    sim = Simulation(RULES, replicas=4, missing=lambda pod, second: second % 60 == 0).run(600, 0)
    assert sim.replicas == 4
    assert sim.trace[-1][2].reason == reasons.PARTIAL


def test_partial_data_may_still_add_replicas() -> None:
    sim = Simulation(RULES, replicas=2, missing=lambda pod, second: pod == 0)
    assert sim.look(60).desired == 4  # half of the load is in the metrics


def test_pods_too_busy_to_answer_count_as_loaded() -> None:
    """Checks that pods without an answer do not count as idle next to a pod at three times its target.

    As idle pods they would make three replicas appear sufficient.
    """
    sim = Simulation(RULES, replicas=3, missing=lambda pod, second: pod > 0)
    assert sim.look(90).desired == 5
    assert Simulation(RULES, replicas=3, missing=lambda pod, second: True).look(90).desired == 3


def test_a_pod_that_never_gets_ready_counts_but_does_not_prevent_scaling() -> None:
    sim = Simulation(RULES, replicas=3, broken=1)
    sim.run(60, 30)
    assert set(sim.sizes) == {3}  # 30 requests wait at two pods; the third pod counts as starting
    sim.run(60, 55)
    assert sim.replicas == 6
    sim.run(600, 5)
    assert sim.replicas == 1


def test_replicas_stay_constant_without_a_ready_pod() -> None:
    sim = Simulation(RULES, replicas=3, broken=3).run(900, 100)
    assert set(sim.sizes) == {3}
    assert sim.trace[-1][2].reason == reasons.NOT_READY


def test_a_restart_of_the_operator_waits_one_stable_window_before_it_shrinks() -> None:
    sim = Simulation(RULES, replicas=5).run(285, 5)
    sim.restart()
    sim.run(300, 5)
    assert set(sim.sizes) == {5}
    assert sim.trace[-1][2].reason == reasons.YOUNG
    sim.run(15, 5)
    assert sim.replicas == 1


def test_the_stable_window_after_a_restart_depends_on_the_load_time() -> None:
    sim = Simulation(RULES, replicas=5, startup=600)
    sim.restart()
    sim.run(1200, 5)
    assert set(sim.sizes) == {5}
    sim.run(15, 5)
    assert sim.replicas == 1


def test_loading_replicas_are_not_removed_before_they_serve() -> None:
    """Checks this with a Ready pod whose recorded load time of 0 s does not reveal the real one of 1800 s."""
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


def test_a_restart_does_not_delay_growth() -> None:
    sim = Simulation(RULES, replicas=2).run(60, 20)
    sim.restart()
    assert sim.look(60).desired == 6


def test_a_long_pause_of_the_operator_counts_as_a_restart() -> None:
    sim = Simulation(RULES, replicas=5).run(60, 50)
    sim.second += 3600
    sim.run(285, 5)
    assert sim.replicas == 5


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


def test_the_greatest_of_several_targets_counts() -> None:
    rules = Rules(
        1, 9, {"queuedRequestsPerReplica": 50, "runningRequestsPerReplica": 5, "kvCacheUtilizationPercent": 60}
    )
    decision = Simulation(rules, replicas=2).look(40, kv_percent=90)
    assert decision.desired == 6  # the running requests need 8; two pods may become 6 in 15 s
    assert decision.reason == "scaled up for runningRequestsPerReplica"
    assert Simulation(rules, replicas=2).look(2, kv_percent=90).desired == 3


def test_a_load_within_the_tolerance_changes_nothing() -> None:
    assert Simulation(RULES, replicas=4).look(43).desired == 4
    assert Simulation(RULES, replicas=4).look(45).desired == 5


def test_the_reason_says_that_replicas_are_at_a_bound() -> None:
    assert Simulation(RULES, replicas=8).look(200).reason == reasons.FULL
    assert Simulation(RULES, replicas=1).look(0).reason == reasons.IDLE

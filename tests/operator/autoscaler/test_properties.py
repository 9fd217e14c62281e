"""Property-based tests of the autoscaler: invariants that hold for any load."""

from hypothesis import given
from hypothesis import strategies as st

from tests.operator.autoscaler.simulation import Simulation
from unmask_operator.api.autoscaling import ScalingPolicy
from unmask_operator.autoscaler.rules import Direction, Rules

_POLICY = st.builds(
    ScalingPolicy,
    type=st.sampled_from(["Pods", "Percent"]),
    value=st.integers(1, 150),
    periodSeconds=st.integers(1, 120),
)


def _direction(window: st.SearchStrategy[int]) -> st.SearchStrategy[Direction]:
    policies = st.lists(_POLICY, min_size=1, max_size=3).map(tuple)
    return st.builds(Direction, window, policies, st.sampled_from(["Max", "Min"]))


@st.composite
def _rules(draw: st.DrawFn) -> Rules:
    minimum = draw(st.integers(1, 4))
    maximum = draw(st.integers(minimum, 12))
    up, down = draw(_direction(st.integers(0, 60))), draw(_direction(st.integers(0, 300)))
    return Rules(minimum, maximum, {"runningRequestsPerReplica": draw(st.integers(1, 20))}, up, down, 15)


_LOADS = st.lists(st.integers(0, 200), min_size=1, max_size=40)
_MISSING = st.sets(st.tuples(st.integers(0, 11), st.integers(0, 40)))


def _play(rules: Rules, loads: list[int], missing: set[tuple[int, int]], replicas: int, broken: int = 0) -> Simulation:
    sim = Simulation(rules, replicas=replicas, broken=broken)
    sim.missing = lambda pod, second: (pod, int(second / rules.polling)) in missing
    for load in loads:
        sim.look(load)
        sim.second += rules.polling
    return sim


@given(_rules(), _LOADS, _MISSING, st.integers(0, 15), st.integers(0, 3))
def test_decisions_stay_within_bounds_and_never_scale_down_on_partial_data(rules, loads, missing, replicas, broken):
    sim = _play(rules, loads, missing, replicas, broken)
    for _, before, decision, complete in sim.trace:
        assert rules.minimum <= decision.desired <= rules.maximum
        if not complete:
            assert decision.desired >= rules.clamp(before)


@given(_rules(), _LOADS, _MISSING, st.integers(1, 12))
def test_replicas_do_not_shrink_within_a_stable_window_after_growth_or_start(rules, loads, missing, replicas):
    grown = 0.0
    for second, before, decision, _ in _play(rules, loads, missing, replicas).trace:
        base = rules.clamp(before)
        assert decision.desired >= base or second - grown >= rules.down.window
        if decision.desired > base:
            grown = second


@given(_rules(), st.integers(0, 200), st.integers(1, 12), st.integers(0, 3))
def test_replicas_converge_in_one_direction_under_a_steady_load(rules, load, replicas, broken):
    sim = Simulation(rules, replicas=rules.clamp(replicas), broken=min(broken, rules.minimum - 1), startup=0)
    first = sim.replicas
    sim.run(300 + 120 * 12 + 15, load)
    needed = load / rules.targets["runningRequestsPerReplica"]
    assert rules.clamp(round(needed * 0.9 - 0.5)) <= sim.replicas <= rules.clamp(int(needed * 1.12) + 1)
    path = [first, *sim.sizes]
    assert path in (sorted(path), sorted(path, reverse=True))
    before = list(sim.sizes)
    sim.run(600, load)
    assert set(sim.sizes[len(before) :]) == {before[-1]}


@given(_rules(), _LOADS, st.integers(1, 12), st.integers(0, 200))
def test_more_load_never_means_fewer_replicas(rules, loads, replicas, more):
    small, large = _play(rules, loads, set(), replicas), _play(rules, loads, set(), replicas)
    assert small.look(loads[-1]).desired <= large.look(loads[-1] + more).desired

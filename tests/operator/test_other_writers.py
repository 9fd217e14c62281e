"""Tests that two releases that watch the same services stop to undo each other's status, and say so."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.operator.samples import make, resource, running
from unmask_operator.objects import Obj
from unmask_operator.plan.other_writers import LONGEST_PAUSE, RECENT, OtherOperators
from unmask_operator.status import status

OURS, THEIRS = "unmask-operator/a/unmask", "unmask-operator/b/unmask"
START = datetime(2026, 1, 1, tzinfo=UTC)


def written(**seconds: float) -> Obj:
    """Returns a resource whose status each release wrote at a time."""
    names = {"ours": OURS, "theirs": THEIRS, "earlier": "unmask-operator"}
    entries = [
        {"manager": names[name], "subresource": "status", "time": (START + timedelta(seconds=at)).isoformat()}
        for name, at in seconds.items()
    ]
    made = resource()
    return {**made, "metadata": {**made["metadata"], "managedFields": entries}}


def test_writes_by_turns_are_a_contest_and_a_single_one_is_none():
    operators = OtherOperators(OURS)
    for one in (written(), written(ours=9), written(theirs=9), written(ours=9, theirs=8)):
        assert operators.observe(one, START + timedelta(seconds=10)) == ""
    assert operators.observe(written(ours=9, earlier=9), START + timedelta(seconds=10)) == "", "before an upgrade"
    handed_over = written(ours=-100, theirs=9)
    assert operators.observe(handed_over, START + timedelta(seconds=10)) == "", "labels selected another release"
    assert operators.observe(written(ours=8, theirs=9), START + timedelta(seconds=10)) == THEIRS


def test_the_pause_of_a_contest_doubles_and_its_end_is_noticed():
    operators, now, pauses = OtherOperators(OURS), START, []
    for _ in range(8):
        second = (now - START).total_seconds()
        assert operators.observe(written(ours=second - 1, theirs=second), now) == THEIRS
        pauses.append(operators.next_check(now))
        now += timedelta(seconds=pauses[-1])
    assert pauses[:3] == [60, 120, 240]
    assert pauses[-1] == LONGEST_PAUSE.total_seconds()
    assert operators.observe(written(ours=0, theirs=0), now) == ""
    now += 3 * RECENT
    assert operators.observe(written(ours=0, theirs=0), now) == ""
    second = (now - START).total_seconds()
    assert operators.observe(written(ours=second, theirs=second), now) == THEIRS
    assert operators.next_check(now) == 60, "a later contest begins with a short pause"


def test_what_others_do_to_the_resource_is_named() -> None:
    observed = running()
    metadata = {**observed.resource["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/hold"]}
    deleted = replace(observed, resource={**observed.resource, "metadata": metadata})
    for changed, kind, reason, name in (
        (replace(observed, operators=("a/one", "b/two")), "Accepted", "TwoOperators", "releases a/one and b/two"),
        (deleted, "Ready", "Deleting", "finalizers x/hold"),
    ):
        found = next(c for c in status(changed, make(changed))["conditions"] if c["type"] == kind)
        assert found["reason"] == reason
        assert name in found["message"]

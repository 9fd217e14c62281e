"""The time from a pod's creation until it is Ready: once a pod, and of none whose beginning nobody saw."""

from datetime import UTC, datetime, timedelta

from unmask_operator.controller.cold_starts import ColdStarts
from unmask_operator.objects import Key

KEY = Key("n", "demo")
CREATED = datetime(2030, 1, 1, tzinfo=UTC)
LATER = CREATED + timedelta(seconds=1)  # begin of a leadership


def pod(uid, ready=None, started=False, restarts=0):
    """`ready`: the minute after its creation in which it became so."""
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    if ready is not None:
        condition = {**condition, "status": "True", "lastTransitionTime": f"2030-01-01T00:{ready:02}:00Z"}
    main = {"name": "main", "started": started or ready is not None, "restartCount": restarts}
    return {
        "metadata": {"uid": uid, "creationTimestamp": "2030-01-01T00:00:00Z"},
        "status": {"conditions": [condition], "containerStatuses": [main]},
    }


def measured_seconds(*looks, since=LATER):
    seconds = []
    starts = ColdStarts(seconds.append, since)
    for pods in looks:
        starts.look(KEY, pods)
    return seconds


def test_a_pod_is_measured_once_when_it_first_is_ready():
    assert measured_seconds(
        [pod("a")], [pod("a"), pod("b")], [pod("a", 2), pod("b")], [pod("a", 2), pod("b", 7)], [pod("a", 2)]
    ) == [
        120.0,
        420.0,
    ]


def test_a_pod_that_fails_before_it_is_ready_has_a_long_start():
    assert measured_seconds([pod("a")], [pod("a", restarts=2)], [pod("a", 30, restarts=3)]) == [1800.0]


def test_a_pod_that_was_ready_once_starts_no_more():
    assert measured_seconds([pod("a")], [pod("a", 2)], [pod("a", started=True)], [pod("a", 40)]) == [120.0]
    assert measured_seconds([pod("a")], [pod("a", 2)], [pod("a", restarts=1)], [pod("a", 40, restarts=1)]) == [120.0]


def test_a_new_leader_counts_no_start_that_was_over():
    assert measured_seconds([pod("a", 2)], [pod("a", 2)]) == []
    assert measured_seconds([pod("a", restarts=1)], [pod("a", 40, restarts=1)]) == []
    assert measured_seconds([pod("a")], [pod("a", 3)]) == [180.0]


def test_a_pod_that_is_ready_before_the_first_look_is_measured():
    looks = [[pod("a", 2)], [pod("a", 2), pod("b", 1)], [pod("a", started=True), pod("b", 1)], [pod("a", 40)]]
    assert measured_seconds(*looks, since=CREATED) == [120.0, 60.0]


def test_a_pod_that_goes_is_forgotten():
    starts = ColdStarts(lambda seconds: None, LATER)
    starts.look(KEY, [pod("a")])
    starts.look(KEY, [])
    assert starts._coming == {}

"""Tests of the time from a pod's creation until it is Ready.

It is measured once per pod, and only for pods whose start was observed.
"""

from datetime import UTC, datetime, timedelta

from unmask_operator.controller.cold_starts import ColdStarts
from unmask_operator.objects import Key

KEY = Key("n", "demo")
CREATED = datetime(2030, 1, 1, tzinfo=UTC)
LATER = CREATED + timedelta(seconds=1)  # start of the leadership


def pod(uid, ready=None, started=False, restarts=0):
    """Returns a pod. `ready`: minutes from its creation until it became Ready."""
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
    starts = ColdStarts(seconds.append, lambda phase, seconds: None, since)
    for pods in looks:
        starts.observe(KEY, pods)
    return seconds


def test_a_pod_is_measured_once_when_it_first_is_ready():
    assert measured_seconds(
        [pod("a")], [pod("a"), pod("b")], [pod("a", 2), pod("b")], [pod("a", 2), pod("b", 7)], [pod("a", 2)]
    ) == [
        120.0,
        420.0,
    ]


def test_the_start_of_a_pod_includes_its_restarts():
    assert measured_seconds([pod("a")], [pod("a", restarts=2)], [pod("a", 30, restarts=3)]) == [1800.0]


def test_a_pod_that_was_ready_once_is_not_measured_again():
    assert measured_seconds([pod("a")], [pod("a", 2)], [pod("a", started=True)], [pod("a", 40)]) == [120.0]
    assert measured_seconds([pod("a")], [pod("a", 2)], [pod("a", restarts=1)], [pod("a", 40, restarts=1)]) == [120.0]


def test_a_new_leader_does_not_measure_starts_that_ended_before():
    assert measured_seconds([pod("a", 2)], [pod("a", 2)]) == []
    assert measured_seconds([pod("a", restarts=1)], [pod("a", 40, restarts=1)]) == []
    assert measured_seconds([pod("a")], [pod("a", 3)]) == [180.0]


def test_a_pod_that_is_ready_before_it_is_first_observed_is_measured():
    looks = [[pod("a", 2)], [pod("a", 2), pod("b", 1)], [pod("a", started=True), pod("b", 1)], [pod("a", 40)]]
    assert measured_seconds(*looks, since=CREATED) == [120.0, 60.0]


def test_the_data_of_a_deleted_pod_are_dropped():
    starts = ColdStarts(lambda seconds: None, lambda phase, seconds: None, LATER)
    starts.observe(KEY, [pod("a")])
    starts.phase_reported(KEY, "a", "weights", LATER)
    starts.observe(KEY, [])
    assert starts._pending == starts._load_phases == {}


def at(seconds):
    return CREATED + timedelta(seconds=seconds)


def phases_of(reports=(), *, scheduled=3, started=20, restarts=0):
    """Returns seconds by phase of a pod that is Ready after two minutes.

    `reports` are pairs of phase and seconds after its creation.
    """
    found = {}
    starts = ColdStarts(lambda seconds: None, found.__setitem__, CREATED)
    starts.observe(KEY, [pod("a")])
    for phase, seconds in reports:
        starts.phase_reported(KEY, "a", phase, at(seconds))
        starts.observe(KEY, [pod("a")])
    ready = pod("a", 2, restarts=restarts)
    ready["status"]["conditions"] += [{"type": "PodScheduled", "lastTransitionTime": at(scheduled).isoformat()}]
    ready["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": at(started).isoformat()}}
    starts.observe(KEY, [ready])
    return found


def test_phases_add_up_to_the_time_until_ready():
    reports = [("start", 22), ("download", 25), ("download", 40), ("weights", 60), ("warmup", 100)]
    found = phases_of(reports)
    assert found == {
        "scheduling": 3, "containers": 17, "start": 5, "download": 35, "weights": 40, "warmup": 20,
    }  # fmt: skip
    assert sum(found.values()) == 120


def test_the_time_of_an_unreported_phase_counts_for_the_previous_phase():
    assert phases_of([("warmup", 50)]) == {"scheduling": 3, "containers": 17, "start": 30, "warmup": 70}
    assert phases_of() == {"scheduling": 3, "containers": 17, "start": 100}


def test_phases_of_unknown_names_are_ignored():
    assert phases_of([(f"phase {n}", 30 + n) for n in range(20)]) == phases_of()


def test_reports_outside_the_load_because_of_clock_skew_are_clamped_to_it():
    assert phases_of([("weights", 10), ("warmup", 500)]) == {
        "scheduling": 3, "containers": 17, "start": 0, "weights": 100, "warmup": 0,
    }  # fmt: skip


def test_an_engine_that_was_restarted_has_no_phases():
    assert phases_of([("weights", 30)], restarts=1) == {}

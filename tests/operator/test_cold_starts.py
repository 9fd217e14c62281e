"""Tests of the time until a pod is Ready: measured once per pod whose start was observed, and read from its status."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.operator.recorded import pod as recorded
from unmask_operator.controller.cold_starts import ColdStarts
from unmask_operator.objects import Key
from unmask_operator.status.pods.pod_status import load_seconds

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


@pytest.mark.parametrize(
    ("looks", "since", "measured"),
    [
        ([[pod("a")], [pod("a", 2), pod("b")], [pod("a", 2), pod("b", 7)], [pod("a", 2)]], LATER, [120, 420]),
        # restarts are part of the start
        ([[pod("a")], [pod("a", restarts=2)], [pod("a", 30, restarts=3)]], LATER, [1800]),
        # a pod that was Ready once is not measured again
        ([[pod("a")], [pod("a", 2)], [pod("a", started=True)], [pod("a", 40)]], LATER, [120]),
        ([[pod("a")], [pod("a", 2)], [pod("a", restarts=1)], [pod("a", 40, restarts=1)]], LATER, [120]),
        # a new leader does not measure starts that ended before
        ([[pod("a", 2)], [pod("a", 2)]], LATER, []),
        ([[pod("a", started=True)], [pod("a", 2)]], LATER, []),
        # created during the leadership, and Ready before it is first observed
        ([[pod("a", 2)], [pod("a", 2), pod("b", 1)], [pod("a", started=True)], [pod("a", 40)]], CREATED, [120, 60]),
    ],
)
def test_a_pod_is_measured_once_when_it_first_is_ready(looks, since, measured):
    seconds = []
    starts = ColdStarts(seconds.append, lambda phase, seconds: None, since)
    for pods in looks:
        starts.observe(KEY, pods)
    assert seconds == measured


def test_the_data_of_a_deleted_pod_are_dropped():
    starts = ColdStarts(lambda seconds: None, lambda phase, seconds: None, LATER)
    starts.observe(KEY, [pod("a")])
    starts.phase_reported(KEY, "a", "weights", LATER)
    starts.observe(KEY, [])
    assert starts._pending == starts._load_phases == {}


@pytest.mark.parametrize(
    ("reports", "start", "download", "weights", "warmup"),
    [
        ([("start", 22), ("download", 25), ("download", 40), ("weights", 60), ("warmup", 100)], 5, 35, 40, 20),
        ([("warmup", 50)], 30, None, None, 70),  # the time of an unreported phase counts for the previous one
        ([], 100, None, None, None),
        ([(f"phase {n}", 30 + n) for n in range(20)], 100, None, None, None),
        ([("weights", 10), ("warmup", 500)], 0, None, 100, 0),  # clock skew
    ],
)
@pytest.mark.parametrize("restarts", [0, 1])
def test_phases_add_up_to_the_time_until_ready(reports, start, download, weights, warmup, restarts):
    """The pod is Ready after two minutes. A pod whose engine was restarted has no phases."""
    found = {}
    starts = ColdStarts(lambda seconds: None, found.__setitem__, CREATED)
    starts.observe(KEY, [pod("a")])
    for phase, seconds in reports:
        starts.phase_reported(KEY, "a", phase, CREATED + timedelta(seconds=seconds))
        starts.observe(KEY, [pod("a")])
    ready = pod("a", 2, restarts=restarts)
    ready["status"]["conditions"] += [{"type": "PodScheduled", "lastTransitionTime": "2030-01-01T00:00:03Z"}]
    ready["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": "2030-01-01T00:00:20Z"}}
    starts.observe(KEY, [ready])
    phases = {"scheduling": 3, "containers": 17, "start": start}
    phases |= {"download": download, "weights": weights, "warmup": warmup}
    assert found == ({} if restarts else {phase: time for phase, time in phases.items() if time is not None})


SCHEDULED = datetime(2030, 1, 1, 0, 0, 2, tzinfo=UTC)
SPEC = {
    "nodeName": "gpu-1",
    "containers": [{"name": "main", "startupProbe": {"periodSeconds": 5, "failureThreshold": 720}}],
}
DAYS = 3 * 86400


def ready(after, restarts=0, started=30):
    """Returns a pod that became Ready these seconds after its node was chosen. Its engine may have restarted."""
    found = recorded("ready") | {"spec": SPEC}
    stamps = [(SCHEDULED + timedelta(seconds=seconds)).isoformat() for seconds in (after, started)]
    for condition in found["status"]["conditions"]:
        if condition["type"] == "Ready":
            condition["lastTransitionTime"] = stamps[0]
    main = {"restartCount": restarts, "state": {"running": {"startedAt": stamps[1]}}, "lastState": {}}
    found["status"]["containerStatuses"][0] |= main
    return found


def starting(state):
    found = recorded(state) | {"spec": SPEC}
    found["status"]["containerStatuses"][0]["restartCount"] = 0
    return found


@pytest.mark.parametrize(
    ("found", "after", "reported", "seconds"),
    [
        # from scheduling or the last start of the engine until Ready, or until now
        (ready(600), DAYS, 0, 600), (ready(7000, restarts=2, started=6700), DAYS, 0, 300),
        (starting("loading"), 90, 0, 90),
        # the reported time limits that of a pod that is Ready again
        (ready(3000), DAYS, 0, 3000), (ready(3000), DAYS, 170, 200),
        (ready(7000, restarts=2, started=6000), DAYS, 170, 170),
        # no load, or not the time of one
        (ready(2 * 86400), DAYS, 0, 0), (starting("creating"), 4200, 0, 4200),
        (starting("creating"), 4201, 0, 0),  # beyond the progress deadline
        *((recorded(state), 90, 0, 0)
          for state in ("unschedulable_gpu", "crash_loop", "evicted", "image_pull", "secret_missing", "oom_killed")),
        ({"metadata": {"name": "foreign"}, "spec": {"nodeName": "n", "containers": []}}, 0, 0, 0),
    ],
)  # fmt: skip
def test_the_load_time_of_a_pod_is_read_from_its_status(found, after, reported, seconds):
    assert load_seconds(found, SCHEDULED + timedelta(seconds=after), reported) == seconds

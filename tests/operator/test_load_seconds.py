"""Tests of the load time that is computed from a pod's status, for pods that have loaded and for pods that load."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.operator.recorded import pod
from unmask_operator.objects import Obj
from unmask_operator.status.pods.pod_status import load_seconds

SCHEDULED = datetime(2030, 1, 1, 0, 0, 2, tzinfo=UTC)
PROBE = {"periodSeconds": 5, "failureThreshold": 720}  # one hour


def seconds(state: str, after: float, **main: Any) -> float:
    found = pod(state)
    found["spec"] = {"nodeName": "gpu-1", "containers": [{"name": "main", "startupProbe": PROBE}]}
    found["status"]["containerStatuses"][0] |= main
    return load_seconds(found, SCHEDULED + timedelta(seconds=after))


def ready(after: float, restarts: int = 0, started: float = 2) -> Obj:
    found = pod("ready")
    found["spec"] = {"nodeName": "gpu-1", "containers": [{"name": "main", "startupProbe": PROBE}]}
    for condition in found["status"]["conditions"]:
        if condition["type"] == "Ready":
            condition["lastTransitionTime"] = stamp(after)
    running = {"running": {"startedAt": stamp(started)}}
    found["status"]["containerStatuses"][0] |= {"restartCount": restarts, "state": running, "lastState": {}}
    return found


def stamp(after: float) -> str:
    return (SCHEDULED + timedelta(seconds=after)).isoformat().replace("+00:00", "Z")


def test_the_load_time_begins_with_scheduling_or_with_the_last_start_of_the_engine() -> None:
    later = SCHEDULED + timedelta(days=3)
    assert load_seconds(ready(600), later) == 600
    assert load_seconds(ready(7000, restarts=2, started=6700), later) == 300


def test_the_reported_load_time_limits_that_of_a_pod_that_is_ready_again() -> None:
    later = SCHEDULED + timedelta(days=3)
    assert load_seconds(ready(3000, started=30), later) == 3000
    assert load_seconds(ready(3000, started=30), later, reported=170) == 200
    assert load_seconds(ready(2 * 86400, started=30), later, reported=170) == 200
    assert load_seconds(ready(7000, restarts=2, started=6000), later, reported=170) == 170
    assert load_seconds(ready(150, started=30), later, reported=170) == 150, (
        "the load time exceeds the time until Ready"
    )


def test_the_load_time_of_a_loading_pod_ends_now() -> None:
    assert seconds("loading", 90, restartCount=0) == 90
    assert seconds("creating", 40) == 40


def test_pods_that_do_not_load_have_no_load_time() -> None:
    assert load_seconds(pod("unschedulable_gpu"), SCHEDULED + timedelta(seconds=90)) == 0
    assert seconds("crash_loop", 90) == 0
    assert load_seconds(ready(2 * 86400), SCHEDULED + timedelta(days=3)) == 0, (
        "a pod that is Ready again after a pause has a load time"
    )
    assert seconds("creating", 4201) == 0, "a pod beyond the progress deadline has a load time"
    assert load_seconds({"metadata": {"name": "foreign"}, "spec": {"nodeName": "n", "containers": []}}, SCHEDULED) == 0


@pytest.mark.parametrize("state", ["evicted", "image_pull", "secret_missing", "oom_killed"])
def test_failing_pods_have_no_load_time(state: str) -> None:
    assert load_seconds(pod(state), SCHEDULED + timedelta(seconds=90)) == 0

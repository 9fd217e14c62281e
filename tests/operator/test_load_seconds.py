"""How long a pod took to load, or has loaded so far, by its status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.operator.recorded import pod
from unmask_operator.objects import Obj
from unmask_operator.status.pods.pod_status import load_seconds

SCHEDULED = datetime(2030, 1, 1, 0, 0, 2, tzinfo=UTC)
PROBE = {"periodSeconds": 5, "failureThreshold": 720}  # an hour


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


def test_a_ready_pod_took_from_its_node_to_ready_and_a_restarted_engine_from_its_start() -> None:
    later = SCHEDULED + timedelta(days=3)
    assert load_seconds(ready(600), later) == 600
    assert load_seconds(ready(7000, restarts=2, started=6700), later) == 300


def test_a_pod_that_is_ready_again_took_the_load_time_of_its_engine() -> None:
    later = SCHEDULED + timedelta(days=3)
    assert load_seconds(ready(3000, started=30), later) == 3000
    assert load_seconds(ready(3000, started=30), later, reported=170) == 200
    assert load_seconds(ready(2 * 86400, started=30), later, reported=170) == 200
    assert load_seconds(ready(7000, restarts=2, started=6000), later, reported=170) == 170
    assert load_seconds(ready(150, started=30), later, reported=170) == 150, "the engine may have loaded twice"


def test_a_pod_that_loads_has_done_so_until_now() -> None:
    assert seconds("loading", 90, restartCount=0) == 90
    assert seconds("creating", 40) == 40


def test_what_is_no_load_counts_nothing() -> None:
    assert load_seconds(pod("unschedulable_gpu"), SCHEDULED + timedelta(seconds=90)) == 0
    assert seconds("crash_loop", 90) == 0
    assert load_seconds(ready(2 * 86400), SCHEDULED + timedelta(days=3)) == 0, "Ready again after a pause"
    assert seconds("creating", 4201) == 0, "longer than its Deployment gives it"
    assert load_seconds({"metadata": {"name": "foreign"}, "spec": {"nodeName": "n", "containers": []}}, SCHEDULED) == 0


@pytest.mark.parametrize("state", ["evicted", "image_pull", "secret_missing", "oom_killed"])
def test_trouble_is_no_load(state: str) -> None:
    assert load_seconds(pod(state), SCHEDULED + timedelta(seconds=90)) == 0

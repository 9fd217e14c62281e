"""Tests of the Events between recorded states."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from tests.operator.recorded import NOW, pod, reconcile, service
from unmask_operator.plan.observed import Decision, Load, Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.status import status
from unmask_operator.status.transitions import Event, transitions


def _events_of(*steps: tuple[Observed, Plan]) -> list[list[tuple[str, str]]]:
    """Returns the Events of each step, compared with the previous one."""
    events, old = [], {}
    for step in steps:
        new = status(*step)
        events.append([(event.type, event.reason) for event in transitions(old, new)])
        assert transitions(new, new) == []
        old = new
    return events


def test_the_events_of_a_service_that_becomes_ready() -> None:
    loading = pod("loading")
    loads = {loading["metadata"]["uid"]: Load("weights", 10)}
    assert _events_of(
        reconcile("created"),
        reconcile("progressing", pod("creating")),
        reconcile("progressing", loading),
        reconcile("progressing", loading, loads=loads),
        reconcile("complete", pod("ready")),
    ) == [
        [("Normal", "Accepted")],
        [],
        [],
        [],
        [("Normal", "Ready")],
    ]


def test_an_obstacle_emits_one_event_whatever_the_number_of_conditions() -> None:
    assert _events_of(reconcile("created"), reconcile("quota"), reconcile("progressing", pod("crash_loop")))[1:] == [
        [("Warning", "PodCreationRefused")],
        [("Warning", "CrashLoopBackOff")],
    ]


def test_the_events_of_a_rollout_and_an_outage() -> None:
    new = pod("loading", "new", "2030-01-01T01:00:00Z")
    assert (
        _events_of(
            reconcile("complete", pod("ready")),
            reconcile("surging", pod("ready"), new),
            reconcile("complete", pod("ready", "new")),
            reconcile("progressing", pod("oom_killed")),
            reconcile("complete", pod("ready"), replicas=0, resource=service(suspend=True)),  # its pod is terminating
            reconcile("progressing", replicas=0, resource=service(suspend=True)),
        )[1:]
        == [
            [("Normal", "RolloutStarted")],
            [("Normal", "ModelLoaded"), ("Normal", "RolloutComplete"), ("Normal", "Ready")],
            [("Warning", "OOMKilled"), ("Warning", "Unavailable")],
            [("Normal", "Suspended")],
            [],
        ]
    )


def test_an_upgrade_of_the_operator_is_no_warning() -> None:
    was, plan = reconcile("complete", pod("ready"))
    assert _events_of((was, plan), (was, replace(plan, up_to_date=False)))[1:] == [[("Normal", "OperatorUpgraded")]]


def test_scaling_emits_an_event_with_its_reason() -> None:
    scaled = service(autoscaling={"minReplicas": 1, "maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8}})

    def at(desired: int, reason: str, scaled_at: datetime | None = None) -> tuple[Observed, Plan]:
        decision = Decision(desired, reason, True, scaled_at)
        return reconcile("complete", pod("ready"), resource=scaled, decision=decision)

    minute_ago = NOW - timedelta(minutes=1)
    old, new = (
        status(*at(1, "at rest")),
        status(*at(3, "scaled up for runningRequestsPerReplica", minute_ago)),
    )
    assert transitions(old, new) == [
        Event("Normal", "Scaled", "from 1 to 3 replicas: scaled up for runningRequestsPerReplica")
    ]
    assert [event.message for event in transitions({}, new) if event.reason == "Scaled"] == [
        "to 3 replicas: scaled up for runningRequestsPerReplica"
    ]
    assert transitions(new, status(*at(3, "at rest", minute_ago))) == []
    assert new["lastScaleTime"] == "2030-01-01T02:59:00Z"

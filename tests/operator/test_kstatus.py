"""Tests that waits of Flux and Helm 4, which use kstatus, end on every permanent state and on no temporary one."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.operator.kstatus import CURRENT, FAILED, IN_PROGRESS, TERMINATING, kstatus
from tests.operator.recorded import UID, load, owned, pod, reconcile, service
from unmask_operator.objects import API_VERSION, KIND, Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan, Problem
from unmask_operator.status import status
from unmask_operator.status.transitions import transitions


def seen(known: tuple[Observed, Plan]) -> Obj:
    """Returns the resource with the status that a reconcile writes."""
    return {**known[0].resource, "status": status(*known)}


def stalled(resource: Obj) -> Obj:
    found: Obj = next((c for c in resource["status"]["conditions"] if c["type"] == "Stalled"), {})
    return found


def refused(reason: str, message: str = "spec.engine.blockSize: must be at least 1") -> Plan:
    return Plan(problems=(Problem("Accepted", reason, message),))


def paused() -> tuple[Observed, Plan]:
    observed, plan = reconcile("surging", pod("ready"), pod("loading", "b"))
    next(iter(observed.children.values()))["spec"]["paused"] = True
    return observed, plan


def refused_lately() -> tuple[Observed, Plan]:
    """Returns a state in which pods were refused only recently, as while an admission webhook starts."""
    observed, plan = reconcile("quota")
    deployment = copy.deepcopy(next(iter(observed.children.values())))
    for condition in deployment["status"]["conditions"]:
        condition["lastTransitionTime"] = (observed.now - timedelta(seconds=60)).isoformat()
    return replace(observed, children={Ref.of(deployment): deployment}), plan


def overdue(state: str) -> tuple[Observed, Plan]:
    return reconcile("deadline_exceeded", *([pod(state)] if state else []))


SERVICE = Ref("v1", "Service", "demo")
LASTING = {
    "suspended": (reconcile("created", replicas=0, resource=service(suspend=True)), "Suspended"),
    "no replicas": (reconcile("created", replicas=0), "NoReplicas"),
    "invalid spec": (reconcile("complete", pod("ready"), plan=refused("InvalidSpec")), "InvalidSpec"),
    "invalid spec, never accepted": (reconcile("created", plan=refused("InvalidSpec")), "InvalidSpec"),
    "invalid and suspended": (
        reconcile("complete", resource=service(suspend=True), plan=refused("InvalidSpec")),
        "InvalidSpec",
    ),
    "foreign object": (reconcile("created", plan=refused("NameConflict")), "NameConflict"),
    "refused child": (reconcile("complete", pod("ready"), refusals={SERVICE: "port is taken"}), "Refused"),
    "quota": (reconcile("quota"), "PodCreationRefused"),
    "Pod Security": (reconcile("pod_security"), "PodCreationRefused"),
    "paused rollout": (paused(), "DeploymentPaused"),
    **{
        f"deadline, {state or 'no pod'}": (overdue(state), "ProgressDeadlineExceeded")
        for state in (
            "probe_failing",
            "crash_loop",
            "image_pull",
            "secret_missing",
            "oom_killed",
            "unschedulable_gpu",
            "",
        )
    },
}
PASSING = {
    "pod is created": reconcile("progressing", pod("creating")),
    "model loads": reconcile("progressing", pod("loading")),
    "crash loop before the deadline": reconcile("progressing", pod("crash_loop")),
    "no GPU before the deadline": reconcile("progressing", pod("unschedulable_gpu"), nodes=load("nodes")),
    "rollout": reconcile("surging", pod("ready"), pod("loading", "b")),
    "API server fails on a child": reconcile("complete", pod("ready"), failures={SERVICE: "webhook is away"}),
    "suspended, pods still end": reconcile("complete", pod("ready"), replicas=0, resource=service(suspend=True)),
    "no Deployment status yet": reconcile("created"),
    "pods are refused for a moment": refused_lately(),
}


@pytest.mark.parametrize("state", LASTING)
def test_a_wait_ends_on_a_state_that_lasts_until_a_user_acts(state):
    known, reason = LASTING[state]
    resource = seen(known)
    assert kstatus(resource) == FAILED
    assert stalled(resource)["reason"] == reason
    assert stalled(resource)["message"]


@pytest.mark.parametrize("state", PASSING)
def test_a_wait_continues_while_the_state_is_temporary(state):
    resource = seen(PASSING[state])
    assert kstatus(resource) == IN_PROGRESS
    assert not stalled(resource)


def test_a_wait_ends_on_a_service_that_is_ready_or_scales():
    assert kstatus(seen(reconcile("complete", pod("ready")))) == CURRENT
    creating = pod("creating", "b", "2030-01-01T02:00:00Z")
    assert kstatus(seen(reconcile("scaled_up", pod("ready"), creating, replicas=3))) == CURRENT


def test_an_edit_is_in_progress_until_it_was_reconciled():
    resource = seen(reconcile("complete", pod("ready")))
    resource["metadata"] = {**resource["metadata"], "generation": 2}
    assert kstatus(resource) == IN_PROGRESS
    resource["metadata"]["deletionTimestamp"] = "2030-01-01T03:00:00Z"
    assert kstatus(resource) == TERMINATING


def test_a_deadline_of_an_earlier_template_does_not_end_the_wait_for_its_correction():
    observed, plan = reconcile("deadline_exceeded", pod("loading"), resource=service(2))
    next(iter(observed.children.values()))["metadata"]["generation"] = 2
    assert kstatus(seen((observed, plan))) == IN_PROGRESS


def test_children_of_an_earlier_resource_of_the_name_do_not_end_the_wait():
    """Checks this because the garbage collector deletes them, so the conflict is temporary."""
    earlier = owned("v1", "Service", "demo")
    earlier["metadata"]["ownerReferences"][0] |= {"apiVersion": API_VERSION, "kind": KIND, "uid": f"{UID}-earlier"}
    known = reconcile("created", plan=refused("NameConflict"), children=[earlier])
    assert kstatus(seen(known)) == IN_PROGRESS


def test_stalled_emits_one_event_with_its_cause():
    for known, _ in LASTING.values():
        new = status(*known)
        events = transitions({}, new)
        assert len({(event.type, event.reason) for event in events}) == len(events)
        assert not [event for event in events if event.reason == "Stalled"]
        assert (
            transitions(new, status(replace(known[0], resource={**known[0].resource, "status": new}), known[1])) == []
        )

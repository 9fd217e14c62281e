"""Tests of GPUs that Dynamic Resource Allocation provides, and of pods that Kueue holds back."""

from typing import Any

import pytest

from tests.operator.pod_states import check, judge, observe_pod
from tests.operator.samples import apply, child, container, edit, kinds, make, observe, resource, running, template
from unmask_operator.objects import Obj
from unmask_operator.settings import Settings

CLASS = {"gpu": {"deviceClassName": "gpu.example.com"}}
CLAIM = {"name": "mine", "resourceClaimTemplateName": "two-gpus"}


def of_class(**parallelism: int) -> Obj:
    return {**CLASS, "parallelism": parallelism}


def test_a_device_class_gives_each_pod_a_claim_for_its_gpus() -> None:
    made = make(observe(resource(**of_class(tensor=4, data=2))))
    claims = child(made, "ResourceClaimTemplate")
    (request,) = claims["spec"]["spec"]["devices"]["requests"]
    exactly = {"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 8}
    assert request == {"name": "gpu", "exactly": exactly}
    (claim,) = template(made)["spec"]["resourceClaims"]
    assert claim == {"name": "gpu", "resourceClaimTemplateName": claims["metadata"]["name"]}
    assert container(made)["resources"]["claims"] == [{"name": "gpu"}]
    assert "--device=cuda" in container(made)["args"]
    assert "limits" not in container(made)["resources"]
    assert kinds(made).index("ResourceClaimTemplate") < kinds(made).index("Deployment")


def test_claims_of_the_user_replace_the_extended_resource() -> None:
    made = make(observe(resource(gpu={"resourceClaims": [CLAIM]}, resources={"limits": {"cpu": 4}})))
    assert template(made)["spec"]["resourceClaims"] == [CLAIM]
    assert container(made)["resources"] == {"limits": {"cpu": 4}, "claims": [{"name": "mine"}]}
    assert "ResourceClaimTemplate" not in kinds(made)
    assert "claims" not in container(make(observe(resource(gpu={}))))["resources"]


def test_another_number_of_gpus_needs_another_template_and_the_old_one_serves_the_old_pods() -> None:
    """The API server refuses a change of the spec of a ResourceClaimTemplate."""
    observed = running(**of_class(tensor=1))
    old = child(make(observed), "ResourceClaimTemplate")["metadata"]["name"]
    made = make(edited := edit(observed, **of_class(tensor=2)))
    new = child(made, "ResourceClaimTemplate")["metadata"]["name"]
    assert new != old
    assert made.delete == (), "pods of the old revision could not be created any more"
    observed = apply(edited, made)
    deleted = []
    for requests in range(4, 9):  # more templates than are retained
        observed = edit(observed, gpu=None, parallelism=None, engine={"maxNumReqs": requests})
        deleted += (made := make(observed)).delete
        observed = apply(observed, made)
    assert {ref.name for ref in deleted if ref.kind == "ResourceClaimTemplate"} == {old, new}


def test_the_template_stays_while_the_pods_are_pinned() -> None:
    observed = running(**of_class(tensor=2))
    made = make(edit(observed, monitoring={"unknown": 1}))
    assert child(made, "ResourceClaimTemplate") == child(make(observed), "ResourceClaimTemplate")


@pytest.mark.parametrize(
    ("known", "settings", "expected"),
    [
        ({}, Settings(), "False NotEnabled dra.enabled ... spec.gpu.deviceClassName"),
        ({"apis": frozenset()}, Settings(dra=True), "False MissingCRD Kubernetes 1.34"),
    ],
)
def test_without_the_kind_no_pod_is_changed(known: Obj, settings: Settings, expected: str) -> None:
    observed = edit(running(), **CLASS)
    observed = observe(observed.resource, *observed.children.values(), **known)
    made = make(observed, settings)
    check(judge(observed, made), f"Accepted {expected}")
    assert template(made) == template(make(running()))


GATE = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
OTHER = {"schedulingGates": [{"name": "example.com/hold"}]}
GATED = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
         "message": "Scheduling is blocked due to non-empty scheduling gates"}
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "spec", "expected"),
    [
        (GATE, {"commonLabels": {"kueue.x-k8s.io/queue-name": "team-a"}}, "WaitingForQueue queue team-a"),
        (GATE, {}, "WaitingForQueue kubectl describe workloads ... !queue "),
        (OTHER, {}, "Unschedulable spec.podTemplate.spec.schedulingGates"),
    ],
)
def test_a_pod_that_kueue_holds_back_is_not_told_to_lose_its_gate(pod: Obj, spec: Any, expected: str) -> None:
    found = judge(observe_pod(GATED, None, pod_spec=pod, **spec))
    check(found, f"Scheduled False {expected}")


def test_waiting_for_a_queue_is_no_stall() -> None:
    late = {"conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]}
    check(judge(observe_pod(GATED, None, pod_spec=OTHER, deployment=late)), "Stalled True ProgressDeadlineExceeded")
    check(judge(observe_pod(GATED, None, pod_spec=GATE, deployment=late)), "Stalled absent")

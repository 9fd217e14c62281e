"""Tests of Deployments whose rollout does not proceed: paused, not observed, or without a ReplicaSet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.pod_states import RUNNING, SCHEDULED, container, judge, observe_pod
from tests.operator.recorded import deployment, pod, reconcile, service
from tests.operator.samples import apply, edit, make
from unmask_operator.objects import Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.status import status
from unmask_operator.status.transitions import transitions

RESUME = "kubectl rollout resume deployment/demo -n models"


def pause(stage: str, *pods: Obj, generation: int = 1, deployment_status: Obj | None = None, **known: Any) -> Obj:
    """Returns the status with a paused Deployment at a stage."""
    return status(*observe(stage, *pods, generation=generation, deployment_status=deployment_status, **known))


def observe(
    stage: str,
    *pods: Obj,
    paused: bool = True,
    generation: int = 1,
    deployment_status: Obj | None = None,
    **known: Any,
) -> tuple[Observed, Plan]:
    observed, plan = reconcile(stage, *pods, **known)
    (live,) = (child for child in observed.children.values() if child["kind"] == "Deployment")
    if paused:
        live["spec"]["paused"] = True
    live["metadata"]["generation"] = generation
    live["status"] = {**live["status"], **(deployment_status or {})}
    return observed, plan


def conditions(new: Obj) -> dict[str, Obj]:
    return {c["type"]: c for c in new["conditions"]}


def outdated(replicas: int = 1) -> Obj:
    """Returns the counts of a paused Deployment whose template was edited, so that none of its pods has the new one."""
    paused = {
        "type": "Progressing",
        "status": "Unknown",
        "reason": "DeploymentPaused",
        "message": "Deployment is paused",
    }
    return {"observedGeneration": 2, "replicas": replicas, "updatedReplicas": 0, "conditions": [paused]}


def test_an_edit_under_a_paused_deployment_names_the_command_that_resumes_it() -> None:
    found = conditions(pause("complete", pod("ready"), generation=2, deployment_status=outdated()))
    for condition in ("RolloutComplete", "UpToDate", "Ready"):
        assert (found[condition]["status"], found[condition]["reason"]) == ("False", "DeploymentPaused")
        assert "paused" in found[condition]["message"]
        assert RESUME in found[condition]["message"]
    assert found["Available"]["status"] == found["Scheduled"]["status"] == "True"


def test_a_paused_deployment_without_pods_is_reported_with_the_cause() -> None:
    found = conditions(pause("created"))
    for condition in ("Scheduled", "RolloutComplete", "Available", "Ready"):
        assert found[condition]["reason"] == "DeploymentPaused"
        assert RESUME in found[condition]["message"]


def test_a_paused_deployment_whose_pods_are_all_new_is_complete_and_says_that_it_is_paused() -> None:
    found = conditions(pause("complete", pod("ready")))
    for condition in ("RolloutComplete", "UpToDate", "Available", "Ready"):
        assert found[condition]["status"] == "True"
    assert RESUME in found["RolloutComplete"]["message"]


def test_problems_of_the_new_pods_are_named_with_the_pause() -> None:
    new = pod("crash_loop", "demo-66d4b7c8f9-aaaaa", "2030-01-01T01:00:00Z")
    found = conditions(pause("surging", pod("ready"), new))
    assert found["RolloutComplete"]["reason"] == "DeploymentPaused"
    assert RESUME in found["RolloutComplete"]["message"]
    assert "ended with exit code 1" in found["RolloutComplete"]["message"]


def test_a_suspended_service_is_not_reported_as_paused() -> None:
    found = conditions(pause("created", replicas=0, resource=service(suspend=True)))
    assert found["Ready"]["reason"] == "Suspended"
    assert "DeploymentPaused" not in {c["reason"] for c in found.values()}


def test_a_pause_is_an_event_and_no_warning() -> None:
    before = status(*reconcile("complete", pod("ready")))
    after = pause("complete", pod("ready"), generation=2, deployment_status=outdated())
    assert [(event.type, event.reason) for event in transitions(before, after)] == [("Normal", "DeploymentPaused")]


def test_a_deployment_that_its_controller_does_not_observe_is_reported() -> None:
    found = conditions(status(*observe("complete", pod("ready"), paused=False, generation=7)))["RolloutComplete"]
    assert (found["status"], found["reason"]) == ("False", "Progressing")
    assert "has not observed generation 7" in found["message"]
    assert "kube-controller-manager" in found["message"]
    assert "are of the newest template" not in found["message"]


def test_a_replica_set_that_is_refused_is_not_a_deadline() -> None:
    message = 'Failed to create new replica set "demo-5": replicasets.apps "demo-5" is forbidden: exceeded quota: count'
    refused = {"type": "Progressing", "status": "False", "reason": "ReplicaSetCreateError", "message": message}
    known = {"generation": 2, "deployment_status": {**outdated(), "conditions": [refused]}}
    found = conditions(status(*observe("complete", pod("ready"), paused=False, **known)))
    assert found["RolloutComplete"]["reason"] == "PodCreationRefused"
    assert message in found["RolloutComplete"]["message"]
    assert (found["UpToDate"]["status"], found["UpToDate"]["reason"]) == ("False", "PodCreationRefused")
    assert found["Available"]["status"] == "True"


def test_pods_are_not_up_to_date_while_a_rollout_has_yet_to_replace_some() -> None:
    new = pod("loading", "demo-66d4b7c8f9-aaaaa", "2030-01-01T01:00:00Z")
    surging = {"replicas": 2, "updatedReplicas": 1}
    overdue = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    for known, reason in (
        ({"deployment_status": surging}, "Progressing"),
        ({"deployment_status": {**surging, "conditions": [overdue]}}, "ProgressDeadlineExceeded"),
        ({"deployment_status": surging, "generation": 7}, "Progressing"),
    ):
        found = conditions(status(*observe("surging", pod("ready"), new, paused=False, **known)))
        assert (found["UpToDate"]["status"], found["UpToDate"]["reason"]) == ("False", reason)
        assert found["UpToDate"]["message"].startswith("some pods are of an older template: ")
    first = conditions(status(*observe("progressing", pod("loading"), paused=False)))
    assert first["UpToDate"]["status"] == "True"


def first_pods(paused: bool = False, generation: int = 1, **spec: Any) -> dict[str, Obj]:
    """Returns the conditions while the first pod of a service loads its model.

    `generation` is that of the Deployment.
    """
    loading = {"phase": "Running", "conditions": [SCHEDULED], "containerStatuses": [container(state=RUNNING)]}
    observed = observe_pod(loading)
    observed = apply(observed, make(edit(observed, **spec)))
    live = observed.children[Ref("apps/v1", "Deployment", "demo")]
    live["metadata"]["generation"] = generation
    live["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1}
    if paused:
        live["spec"]["paused"] = True
    return judge(edit(observed, **spec))


@pytest.mark.parametrize("spec", [{"replicas": 2}, {"rolloutStrategy": {"maxSurge": 2}}], ids=["scale", "strategy"])
def test_first_pods_stay_up_to_date_while_an_edit_that_changes_no_pod_is_not_observed(spec: Any) -> None:
    found = first_pods(generation=2, **spec)
    assert "has not observed generation 2" in found["RolloutComplete"]["message"]
    assert found["UpToDate"]["status"] == "True"


def test_first_pods_are_not_up_to_date_as_soon_as_an_edit_changes_the_template() -> None:
    found = first_pods(generation=2, engine={"maxNumReqs": 5})
    assert (found["UpToDate"]["status"], found["UpToDate"]["reason"]) == ("False", "Progressing")
    assert first_pods(paused=True, generation=2, engine={"maxNumReqs": 5})["UpToDate"]["reason"] == "DeploymentPaused"


def test_first_pods_stay_up_to_date_under_a_paused_deployment() -> None:
    found = first_pods(paused=True)
    assert found["UpToDate"]["status"] == "True"
    assert RESUME.replace("models", "default") in found["RolloutComplete"]["message"]


def test_a_rollout_that_starts_is_one_event() -> None:
    before = status(*reconcile("complete", pod("ready")))
    surging = {"replicas": 2, "updatedReplicas": 1, "conditions": []}
    new = pod("loading", "demo-66d4b7c8f9-aaaaa", "2030-01-01T01:00:00Z")
    after = status(*observe("surging", pod("ready"), new, paused=False, deployment_status=surging))
    assert [(event.type, event.reason) for event in transitions(before, after)] == [("Normal", "RolloutStarted")]


@pytest.mark.parametrize("stage", ["complete", "surging", "progressing", "deadline_exceeded", "quota"])
def test_a_deployment_that_is_not_paused_is_not_reported_as_paused(stage: str) -> None:
    assert "paused" not in deployment(stage)["spec"]
    found = conditions(status(*observe(stage, pod("ready"), paused=False)))
    assert "paused" not in " ".join(c["message"] for c in found.values())

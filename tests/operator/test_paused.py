"""Tests of Deployments whose rollout does not proceed: paused, not observed, or without a ReplicaSet."""

from typing import Any

import pytest

from tests.operator.pod_states import RUNNING, SCHEDULED, check, container, judge, observe_pod
from tests.operator.recorded import later, pod, reconcile, service
from tests.operator.samples import apply, edit, make
from unmask_operator.objects import Obj, Ref
from unmask_operator.status import status
from unmask_operator.status.transitions import transitions

RESUME = "kubectl rollout resume deployment/demo -n models"
READY = pod("ready")


def rollout(
    stage: str, *pods: Obj, paused: bool = False, generation: int = 1, deployment: Obj | None = None, **known: Any
) -> Obj:
    """Returns the status with a Deployment at a stage. `deployment` replaces members of its status."""
    observed, plan = reconcile(stage, *pods, **known)
    (live,) = (child for child in observed.children.values() if child["kind"] == "Deployment")
    if paused:
        live["spec"]["paused"] = True
    live["metadata"]["generation"] = generation
    live["status"] = {**live["status"], **(deployment or {})}
    return status(observed, plan)


def progressing(reason: str, message: str, value: str = "False") -> list[Obj]:
    return [{"type": "Progressing", "status": value, "reason": reason, "message": message}]


# Counts of a Deployment whose template was edited, so that none of its pods has the new one.
OUTDATED = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 0}
EDITED: Obj = {
    "paused": True,
    "generation": 2,
    "deployment": {**OUTDATED, "conditions": progressing("DeploymentPaused", "is paused", "Unknown")},
}
FORBIDDEN = 'Failed to create new replica set "demo-5": replicasets.apps "demo-5" is forbidden: exceeded quota'
REFUSED: Obj = {**OUTDATED, "conditions": progressing("ReplicaSetCreateError", FORBIDDEN)}
SURGING: Obj = {"replicas": 2, "updatedReplicas": 1}
OVERDUE: Obj = {**SURGING, "conditions": progressing("ProgressDeadlineExceeded", "timed out")}
STARTING = [READY, later("loading")]
SUSPENDED: Obj = {"paused": True, "replicas": 0, "resource": service(suspend=True)}


PAUSED = f"False DeploymentPaused {RESUME}"


@pytest.mark.parametrize(
    ("stage", "pods", "known", "expected"),
    [
        ("complete", [READY], EDITED, [f"RolloutComplete,UpToDate,Ready {PAUSED}", "Scheduled,Available True"]),
        ("created", [], {"paused": True}, [f"RolloutComplete,Scheduled,Available,Ready {PAUSED}"]),
        (*("complete", [READY], {"paused": True}),
         ["UpToDate,Available,Ready True", f"RolloutComplete True  {RESUME}"]),
        (*("surging", [READY, later("crash_loop")], {"paused": True}),
         [f"RolloutComplete {PAUSED} ... ended with exit code 1"]),
        # not paused
        ("created", [], SUSPENDED, ["Ready False Suspended !paused"]),
        (*("complete", [READY], {"generation": 7}),
         ["RolloutComplete False Progressing has not observed generation 7 ... !paused"]),
        (*("complete", [READY], {"generation": 2, "deployment": REFUSED}),
         [f"RolloutComplete False PodCreationRefused {FORBIDDEN} ... !paused", "UpToDate False PodCreationRefused"]),
        # pods of an older template
        *(("surging", STARTING, known, [f"UpToDate False {reason} some pods are of an older template: "])
          for known, reason in (({"deployment": SURGING}, "Progressing"),
                                ({"deployment": SURGING, "generation": 7}, "Progressing"),
                                ({"deployment": OVERDUE}, "ProgressDeadlineExceeded"))),
        ("progressing", [pod("loading")], {}, ["UpToDate True"]),
    ],
)  # fmt: skip
def test_the_conditions_of_a_rollout(stage: str, pods: list[Obj], known: Obj, expected: list[str]) -> None:
    check({c["type"]: c for c in rollout(stage, *pods, **known)["conditions"]}, *expected)


@pytest.mark.parametrize(
    ("stage", "pods", "known", "event"),
    [
        ("complete", [READY], EDITED, "DeploymentPaused"),
        ("surging", STARTING, {"deployment": {**SURGING, "conditions": []}}, "RolloutStarted"),
    ],
)
def test_a_pause_and_the_start_of_a_rollout_are_one_event(stage: str, pods: list[Obj], known: Obj, event: str) -> None:
    events = transitions(rollout("complete", READY), rollout(stage, *pods, **known))
    assert [(each.type, each.reason) for each in events] == [("Normal", event)]


def first_pods(paused: bool = False, generation: int = 2, **spec: Any) -> tuple[str, str, str]:
    """Returns UpToDate and the message of RolloutComplete while the first pod loads and the Deployment has an edit."""
    loading = {"phase": "Running", "conditions": [SCHEDULED], "containerStatuses": [container(state=RUNNING)]}
    observed = edit(observe_pod(loading), **spec)
    observed = apply(observed, make(observed))
    live = observed.children[Ref("apps/v1", "Deployment", "demo")]
    live["metadata"]["generation"] = generation
    live["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1}
    if paused:
        live["spec"]["paused"] = True
    found = judge(observed)
    return found["UpToDate"]["status"], found["UpToDate"]["reason"], found["RolloutComplete"]["message"]


def test_first_pods_are_up_to_date_until_an_edit_changes_the_template() -> None:
    for spec in ({"replicas": 2}, {"rolloutStrategy": {"maxSurge": 2}}):
        value, _, message = first_pods(**spec)
        assert (value, "has not observed generation 2" in message) == ("True", True)
    value, _, message = first_pods(paused=True, generation=1)
    assert (value, RESUME.replace("models", "default") in message) == ("True", True)
    template = {"engine": {"maxNumReqs": 5}}
    assert first_pods(**template)[:2] == ("False", "Progressing")
    assert first_pods(paused=True, **template)[:2] == ("False", "DeploymentPaused")

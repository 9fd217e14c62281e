"""Tests of the status of a resource whose pods are in recorded states."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.recorded import NOW, STATES, deployment, load, owned, pod, reconcile, service
from tools.status import Status
from unmask_operator.objects import TEMPLATE_LABEL, Obj, Ref
from unmask_operator.plan.observed import Decision, Load, Observed
from unmask_operator.plan.plan import Plan, Problem
from unmask_operator.status import status
from unmask_operator.status.transitions import transitions

ORDER = ["Accepted", "Scheduled", "ModelLoaded", "RolloutComplete", "ScalingReady", "UpToDate"]
ORDER += ["Protected", "SettingsConsistent", "Available", "Ready", "Stalled"]


def _conditions(new: Obj) -> dict[str, Obj]:
    return {c["type"]: c for c in new["conditions"]}


def _judge(known: tuple[Observed, Plan]) -> dict[str, Obj]:
    new = status(*known)
    Status.model_validate(new)  # checks the limits of the schema
    assert [c["type"] for c in new["conditions"]] == [kind for kind in ORDER if kind in _conditions(new)]
    return _conditions(new)


def _says(condition: Obj) -> tuple[str, str, str]:
    return condition["status"], condition["reason"], condition["message"]


@pytest.mark.parametrize(
    ("stage", "state", "condition", "reason", "message"),
    [
        (
            "progressing",
            "unschedulable_pvc",
            "Scheduled",
            "PersistentVolumeClaimNotFound",
            "PersistentVolumeClaim weights does not exist",
        ),
        ("progressing", "image_pull", "ModelLoaded", "ImagePullBackOff", "unmask-runtime:9.9.9 cannot be pulled: rpc"),
        ("progressing", "secret_missing", "ModelLoaded", "CreateContainerConfigError", 'secret "hub-token" not found'),
        ("progressing", "crash_loop", "ModelLoaded", "CrashLoopBackOff", "code 1: error: --page-size: 32 is nei"),
        ("progressing", "oom_killed", "ModelLoaded", "OOMKilled", "raise spec.resources.limits.memory"),
        ("progressing", "creating", "ModelLoaded", "Pending", "not started yet"),
        ("progressing", "loading", "ModelLoaded", "Starting", "start-up probe has not passed"),
        ("progressing", "probe_failing", "RolloutComplete", "Progressing", "1 of 1 pods are of the newest template"),
        ("deadline_exceeded", "probe_failing", "RolloutComplete", "ProgressDeadlineExceeded", "(/ready) fails"),
        ("progressing", "evicted", "Scheduled", "Pending", "no pod has a node"),
        ("progressing", "terminating", "Scheduled", "Pending", "no pod has a node"),
    ],
)
def test_a_problem_of_a_pod_is_the_reason_of_ready(
    stage: str, state: str, condition: str, reason: str, message: str
) -> None:
    found = _judge(reconcile(stage, pod(state)))
    assert _says(found[condition])[:2] == ("False", reason)
    assert message in found[condition]["message"]
    assert _says(found["Ready"]) == _says(found[condition])
    assert found["Available"]["status"] == "False"


@pytest.mark.parametrize(
    ("stage", "message"), [("quota", "exceeded quota: gpus"), ("pod_security", 'container "helper"')]
)
def test_a_deployment_whose_pods_are_refused_is_reported(stage: str, message: str) -> None:
    found = _judge(reconcile(stage))
    for condition in ("Scheduled", "RolloutComplete", "Available", "Ready"):
        assert found[condition]["reason"] == "PodCreationRefused"
        assert message in found[condition]["message"]


@pytest.mark.parametrize(
    "states", [("crash_loop", "crash_loop_ended", "crash_loop_running"), ("image_pull", "image_pull_error")]
)
def test_the_status_does_not_change_between_retries_of_the_kubelet(states: tuple[str, ...]) -> None:
    found = [status(*reconcile("progressing", pod(state))) for state in states]
    assert all(one == found[0] for one in found)


def test_the_status_of_a_ready_service() -> None:
    new = status(*reconcile("complete", pod("ready")))
    assert {c["status"] for c in new["conditions"]} == {"True"}
    assert "ScalingReady" not in _conditions(new)
    assert {member: value for member, value in new.items() if member != "conditions"} == {
        "observedGeneration": 1,
        "replicas": 1,
        "readyReplicas": 1,
        "updatedReplicas": 1,
        "selector": "serving.unmask.dev/service=demo",
        "url": "http://demo.models.svc/v1",
        "modelName": "demo",
        "resolvedImage": "registry.example/unmask-runtime:0.1.0",
        "modelLoad": {"phase": "loaded", "percent": 100},
    }
    assert _judge(reconcile("ready_not_yet_available", pod("ready")))["Ready"]["status"] == "True"


def test_a_load_balancer_without_api_keys_is_reported() -> None:
    keys = {"auth": {"apiKeySecretRef": {"name": "keys", "key": "keys"}}}
    for spec, protected in (({}, ("False", "NoAuth")), (keys, ("True", "KeyRequired"))):
        found = _judge(reconcile("complete", pod("ready"), resource=service(service={"type": "LoadBalancer"}, **spec)))
        assert _says(found["Protected"])[:2] == protected
        assert found["Ready"]["status"] == "True"
    assert "Protected" not in _judge(
        reconcile("complete", pod("ready"), resource=service(service={"type": "NodePort"}))
    )


def test_an_open_load_balancer_is_a_warning() -> None:
    before, after = (
        status(*reconcile("complete", pod("ready"), resource=service(service={"type": kind})))
        for kind in ("ClusterIP", "LoadBalancer")
    )
    assert [(event.type, event.reason) for event in transitions(before, after)] == [("Warning", "NoAuth")]


def test_names_come_from_the_spec() -> None:
    spec = {"model": {"uri": "demo://", "name": "poet"}, "service": {"port": 8080}}
    new = status(*reconcile("complete", pod("ready"), resource=service(**spec)))
    assert (new["modelName"], new["url"]) == ("poet", "http://demo.models.svc:8080/v1")


def test_load_progress_is_that_of_the_slowest_pod() -> None:
    one, two = pod("loading"), pod("loading", "other")
    loads = {one["metadata"]["uid"]: Load("weights", 61.4), two["metadata"]["uid"]: Load("weights", 42.2)}
    known = reconcile("progressing", one, two, loads=loads)
    assert status(*known)["modelLoad"] == {"phase": "weights", "percent": 42}
    assert _says(_judge(known)["ModelLoaded"]) == ("False", "Loading", "the model is being loaded: weights, 42 %")


def test_progress_of_an_engine_that_has_exited_is_ignored() -> None:
    over = pod("crash_loop_running")
    known = reconcile("progressing", over, loads={over["metadata"]["uid"]: Load("weights", 42.2)})
    assert "modelLoad" not in status(*known)


def test_conditions_keep_their_time_until_their_status_flips() -> None:
    first = status(*reconcile("created"))
    later = service()
    later["status"] = first
    second = _conditions(
        status(*reconcile("progressing", pod("loading"), resource=later, now=NOW + timedelta(hours=1)))
    )
    assert second["ModelLoaded"]["reason"] == "Starting"
    assert second["ModelLoaded"]["lastTransitionTime"] == "2030-01-01T03:00:00Z"
    assert second["Scheduled"]["lastTransitionTime"] == "2030-01-01T04:00:00Z"


@pytest.mark.parametrize("state", STATES)
def test_an_unchanged_state_leads_to_an_unchanged_status(state: str) -> None:
    autoscaled = service(autoscaling={"minReplicas": 1, "maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8}})
    decision = Decision(1, "the load fits the replicas", True, NOW)
    observed, plan = reconcile("progressing", pod(state), resource=autoscaled, decision=decision)
    autoscaled["status"] = status(observed, plan)
    later = replace(observed, now=NOW + timedelta(hours=1), decision=None)  # as with a new leader
    assert status(later, plan) == autoscaled["status"]


@pytest.mark.parametrize(
    ("nodes", "need", "message", "hint"),
    [
        (True, "2", "needs 2 nvidia.com/gpu and the largest node has 4, not all free; the old pods still serve", True),
        (True, "8", "needs 8 nvidia.com/gpu and the largest node has 4: it never fits", False),
        (False, "2", "needs 2 nvidia.com/gpu; the old pods still serve", True),
    ],
)
def test_too_few_gpus_for_a_rollout(nodes: bool, need: str, message: str, hint: bool) -> None:
    surge = pod("unschedulable_gpu")
    surge["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = need
    known = reconcile("surging", pod("ready"), surge, nodes=load("nodes") if nodes else None)
    found = _judge(known)
    assert found["Available"]["status"] == "True"
    for condition in ("Scheduled", "RolloutComplete", "Ready"):
        assert _says(found[condition])[:2] == ("False", "InsufficientGPU")
        assert message in found[condition]["message"]
        assert ("free a GPU or set maxSurge 0, maxUnavailable 1" in found[condition]["message"]) == hint
        assert "2 Insufficient nvidia.com/gpu" in found[condition]["message"]
        assert "preemption" not in found[condition]["message"]


def test_too_few_gpus_for_the_first_pod() -> None:
    found = _judge(reconcile("progressing", pod("unschedulable_gpu"), nodes=load("nodes")))
    assert "busy now" in found["Ready"]["message"]
    assert "maxSurge" not in found["Ready"]["message"]
    chosen = pod("unschedulable_gpu")
    chosen["spec"]["nodeSelector"] = {"pool": "large"}
    found = _judge(reconcile("progressing", chosen, nodes=load("nodes")))
    assert "no node that it may run on has any" in found["Ready"]["message"]


def test_a_resource_with_a_longer_name_is_not_the_gpu() -> None:
    shared = pod("unschedulable_gpu")
    shared["status"]["conditions"][0]["message"] = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.shared."
    assert _judge(reconcile("progressing", shared))["Scheduled"]["reason"] == "Unschedulable"


def test_scaling_up_does_not_change_ready_unless_a_pod_crashes() -> None:
    pods = [pod("ready"), pod("creating", "b", "2030-01-01T02:00:00Z"), pod("loading", "c", "2030-01-01T02:00:00Z")]
    found = _judge(reconcile("scaled_up", *pods, replicas=3))
    assert found["Ready"]["status"] == "True"
    pods[2] = pod("crash_loop", "c", "2030-01-01T02:00:00Z")
    assert _judge(reconcile("scaled_up", *pods, replicas=3))["Ready"]["reason"] == "CrashLoopBackOff"


@pytest.mark.parametrize("spec", [{}, {"autoscaling": {"maxReplicas": 3}}])
def test_added_replicas_that_wait_for_a_node_do_not_change_ready(spec: dict[str, Any]) -> None:
    decision = Decision(3, "scaled up", True) if spec else None
    known = {"resource": service(**spec), "decision": decision, "nodes": load("nodes")}
    found = _judge(reconcile("scaled_up", pod("ready"), pod("unschedulable_gpu"), replicas=3, **known))
    for condition in ("Scheduled", "RolloutComplete", "Available", "Ready"):
        assert found[condition]["status"] == "True"
    assert _says(found["ScalingReady"])[:2] == ("False", "InsufficientGPU")
    assert "busy now" in found["ScalingReady"]["message"]


def test_added_replicas_that_a_quota_refuses_do_not_change_ready() -> None:
    observed, plan = reconcile("scaled_up", pod("ready"), replicas=3)
    (live,) = observed.children.values()
    (refused,) = (c for c in load("deployments")["quota"]["conditions"] if c["type"] == "ReplicaFailure")
    live["status"]["conditions"] = [*live["status"]["conditions"], refused]
    found = _judge((observed, plan))
    assert found["Ready"]["status"] == "True"
    assert found["ScalingReady"]["reason"] == "PodCreationRefused"


def test_an_autoscaler_without_metrics_is_reported_before_waiting_replicas() -> None:
    known = {"resource": service(autoscaling={"maxReplicas": 3}), "decision": Decision(3, "no metrics", False)}
    found = _judge(reconcile("scaled_up", pod("ready"), pod("unschedulable_gpu"), replicas=3, **known))
    assert found["ScalingReady"]["reason"] == "MetricsMissing"


def test_a_rollout_waits_for_the_new_pods_while_the_old_serve() -> None:
    new = pod("loading", "demo-66d4b7c8f9-aaaaa", "2030-01-01T01:00:00Z")
    found = _judge(reconcile("surging", pod("ready"), new))
    assert found["Available"]["status"] == "True"
    assert _says(found["RolloutComplete"])[1:] == (
        "Progressing",
        "1 of 1 pods are of the newest template, 1 of an older one remains",
    )
    assert found["Ready"]["reason"] == "Starting"


def _marked(obj: Obj, mark: str) -> Obj:
    """Sets the label of a template on a pod or template, and returns it."""
    obj.setdefault("metadata", {}).setdefault("labels", {})[TEMPLATE_LABEL] = mark
    return obj


@pytest.mark.parametrize("mark", ["present", None])
def test_the_pods_of_a_reverted_edit_do_not_affect_the_status(mark: str | None) -> None:
    """Checks a state in which the older pod has the current template and loads normally.

    Without a mark, an operator that set no such label created the pod.
    """
    of_the_edit = _marked(pod("crash_loop", "demo-66d4b7c8f9-aaaaa", "2030-01-01T01:00:00Z"), "edit")
    present = pod("loading")
    observed, plan = reconcile("surging", present, of_the_edit)
    (live,) = observed.children.values()
    if mark:
        _marked(present, mark)
        _marked(live["spec"]["template"], mark)
    found = _judge((observed, plan))
    assert found["ModelLoaded"]["reason"] == "Starting"
    assert found["RolloutComplete"]["reason"] == "Progressing"


def test_every_pod_counts_while_none_has_the_current_template() -> None:
    pods = [pod("loading"), pod("crash_loop", "other", "2030-01-01T01:00:00Z")]
    observed, plan = reconcile("surging", *(_marked(one, "edit") for one in pods))
    (live,) = observed.children.values()
    _marked(live["spec"]["template"], "present")
    assert _judge((observed, plan))["ModelLoaded"]["reason"] == "CrashLoopBackOff"


def test_a_rollout_is_not_complete_before_the_deployment_is_observed() -> None:
    observed, plan = reconcile("complete", pod("ready"))
    live = deployment("complete")
    live["metadata"]["generation"] = 2
    found = _judge((replace(observed, children={Ref.of(live): live}), plan))
    assert _says(found["RolloutComplete"])[:2] == ("False", "Progressing")


def _pin(number: int, template: int | None = None) -> Obj:
    data = {"spec": {}, "restartedAt": "", "image": "", "template": {"number": template or number}}
    return owned("apps/v1", "ControllerRevision", f"demo-r{number}", revision=number, data=data)


def _unseen(stage: str, replicas: int = 1, **known: Any) -> tuple[Observed, Plan]:
    """Returns a state in which the Deployment was written and its controller has not observed it yet."""
    observed, plan = reconcile(stage, pod("ready"), replicas=replicas, **known)
    live = deployment(stage, replicas)
    live["metadata"]["generation"] = 2
    return replace(observed, children={**observed.children, Ref.of(live): live}), plan


@pytest.mark.parametrize("stage", ["complete", "ready_not_yet_available"])
@pytest.mark.parametrize("replicas", [3, 1])
def test_scaling_does_not_change_ready_before_the_deployment_is_observed(stage: str, replicas: int) -> None:
    before = status(*reconcile(stage, pod("ready"), children=[_pin(1)]))
    assert before["currentRevision"] == "demo-r1"
    scaled = service(2, replicas=replicas) | {"status": before}
    new = status(*_unseen(stage, replicas, resource=scaled, children=[_pin(1)]))
    assert _conditions(new)["Ready"]["status"] == "True"
    assert transitions(before, new) == []


def test_an_edit_makes_ready_false_before_the_deployment_is_observed() -> None:
    before = status(*reconcile("complete", pod("ready"), children=[_pin(1)]))
    edited = service(2) | {"status": before}
    new = status(*_unseen("complete", resource=edited, children=[_pin(1), _pin(2)]))
    assert _says(_conditions(new)["Ready"])[:2] == ("False", "Progressing")
    assert new["currentRevision"] == "demo-r1"
    again = service(2) | {"status": new}
    rolled_out = status(*reconcile("complete", pod("ready"), resource=again, children=[_pin(1), _pin(2)]))
    assert rolled_out["currentRevision"] == "demo-r2"


@pytest.mark.parametrize("stage", ["complete", "ready_not_yet_available"])
def test_an_edit_that_does_not_change_the_pods_does_not_change_ready(stage: str) -> None:
    """Checks an edit of `rolloutStrategy`, for example: it creates a revision with the same template and pods."""
    before = status(*reconcile(stage, pod("ready"), children=[_pin(1)]))
    edited = service(2) | {"status": before}
    new = status(*_unseen(stage, resource=edited, children=[_pin(1), _pin(2, template=1)]))
    assert _conditions(new)["Ready"]["status"] == "True"
    assert transitions(before, new) == []
    assert new["currentRevision"] == "demo-r2"


def test_a_revision_that_is_refused_is_not_the_current_one() -> None:
    before = status(*reconcile("complete", pod("ready"), children=[_pin(1)]))
    refused = Plan(reconcile("complete")[1].children, 1, problems=(Problem("Accepted", "Refused", "no"),))
    edited = service(2) | {"status": before}
    new = status(*reconcile("complete", pod("ready"), resource=edited, children=[_pin(1), _pin(2)], plan=refused))
    assert new["currentRevision"] == "demo-r1"


def test_an_evicted_pod_counts_only_until_it_has_a_successor() -> None:
    old = pod("evicted")
    assert _judge(reconcile("complete", old, pod("ready")))["Ready"]["status"] == "True"
    alone = _judge(reconcile("progressing", pod("evicted", created="2030-01-01T02:00:00Z"), pod("loading")))
    assert alone["ModelLoaded"]["reason"] == "Evicted"
    assert "ephemeral-storage" in alone["ModelLoaded"]["message"]


def test_the_status_of_a_suspended_service() -> None:
    found = _judge(reconcile("created", replicas=0, resource=service(suspend=True)))
    assert list(found) == ["Accepted", "UpToDate", "Available", "Ready", "Stalled"]
    assert _says(found["Ready"])[:2] == ("False", "Suspended")
    assert _judge(reconcile("created", replicas=0))["Ready"]["reason"] == "NoReplicas"


def test_an_invalid_spec_is_reported_and_the_running_pods_stay_available() -> None:
    problem = Problem("Accepted", "InvalidSpec", "spec.engine.blockSize: must be at least 1")
    found = _judge(reconcile("complete", pod("ready"), resource=service(2, model=7), plan=Plan(problems=(problem,))))
    assert _says(found["Ready"]) == ("False", "InvalidSpec", problem.message)
    assert found["Available"]["status"] == found["RolloutComplete"]["status"] == "True"
    assert {c["observedGeneration"] for c in found.values()} == {2}
    new = status(Observed(resource=service(), now=NOW), Plan(problems=(problem,)))
    assert [c["type"] for c in new["conditions"]] == ["Accepted", "Available", "Ready", "Stalled"]
    assert new["selector"] == "serving.unmask.dev/service=demo"


def test_a_refused_child_makes_accepted_false() -> None:
    ref = Ref("v1", "Service", "demo")
    found = _judge(reconcile("complete", pod("ready"), refusals={ref: "spec.ports[0].nodePort: already allocated"}))
    assert _says(found["Accepted"]) == (
        "False",
        "Refused",
        "Service demo was refused: spec.ports[0].nodePort: already allocated",
    )


def test_a_foreign_deployment_does_not_count() -> None:
    observed, plan = reconcile("complete")
    foreign = deployment("complete")
    foreign["metadata"]["ownerReferences"][0]["uid"] = "other"
    new = status(replace(observed, children={Ref.of(foreign): foreign}), plan)
    assert new["replicas"] == 0
    assert _conditions(new)["RolloutComplete"]["status"] == "False"


@pytest.mark.parametrize("up_to_date", [True, False])
def test_problems_are_reported_in_their_condition_without_effect_on_ready(up_to_date: bool) -> None:
    crd = Problem("UpToDate", "MissingCRD", "spec.monitoring.podMonitor: the cluster has no such kind")
    observed, plan = reconcile("complete", pod("ready"))
    found = _judge((observed, replace(plan, problems=(crd,), up_to_date=up_to_date)))
    assert _says(found["UpToDate"]) == ("False", "MissingCRD", crd.message)
    assert found["Ready"]["status"] == "True"
    assert _judge((observed, replace(plan, up_to_date=False)))["UpToDate"]["reason"] == "OperatorUpgraded"


_SCALING: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8}}


@pytest.mark.parametrize(
    ("decision", "says"),
    [
        (None, ("Unknown", "Waiting", "the autoscaler has not read the pods' metrics yet")),
        (Decision(2, "the load fits", True), ("True", "Active", "the operator reads the pods' metrics")),
        (Decision(2, "no metrics", False), ("False", "MetricsMissing", "no metrics")),
    ],
)
def test_scaling_ready_reports_the_builtin_autoscaler(decision: Decision | None, says: tuple[str, str, str]) -> None:
    known = reconcile("complete", pod("ready"), resource=service(autoscaling=_SCALING), decision=decision)
    assert _says(_judge(known)["ScalingReady"]) == says
    assert _judge(known)["Ready"]["status"] == "True"
    expected = {"desired": 2, "reason": decision.reason} if decision else None
    assert status(*known).get("autoscaling") == expected


def test_scaling_ready_quotes_the_hpas_message() -> None:
    message = "the HPA was unable to compute the replica count: unable to get metric unmask_requests_waiting"
    conditions = [
        {"type": "AbleToScale", "status": "True", "reason": "SucceededGetScale", "message": "fine"},
        {"type": "ScalingActive", "status": "False", "reason": "FailedGetPodsMetric", "message": message},
    ]
    scaled = service(autoscaling={**_SCALING, "provider": "HPA"})

    def of(found: list[Obj]) -> Obj:
        hpa = owned("autoscaling/v2", "HorizontalPodAutoscaler", "demo-engine", status={"conditions": found})
        return _judge(reconcile("complete", pod("ready"), resource=scaled, children=[hpa]))["ScalingReady"]

    assert _says(of(conditions)) == ("False", "FailedGetPodsMetric", message)
    assert of([])["status"] == "Unknown"
    conditions[1] |= {"status": "True", "reason": "ValidMetricFound"}
    assert of(conditions)["status"] == "True"
    bare = {"type": "AbleToScale", "status": "False"}
    assert _says(of([bare])) == ("False", "NotAbleToScale", "NotAbleToScale")
    assert _says(of([{**bare, "reason": "", "message": "no"}])) == ("False", "NotAbleToScale", "no")


@pytest.mark.parametrize("state", ["creating", "loading", "unschedulable_gpu"])
def test_conditions_that_argo_cd_reads_stay_true_while_a_service_scales(state: str) -> None:
    """Checks docs/operations/argo-cd.md: a pod is added to a serving version, and has no node yet or loads."""
    scaled = service(replicas=2)
    observed, plan = reconcile("complete", pod("ready"), pod(state, "second"), resource=scaled, replicas=2)
    found = _judge((observed, plan))
    assert {found[kind]["status"] for kind in ("Accepted", "Available", "RolloutComplete")} == {"True"}

"""Tests of the status: conditions of recorded states, the other members, and the Events between states.

Flux and Helm 4 wait by kstatus: until Ready is True, or until Stalled reports that a user must act.
"""

import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.operator.pod_states import check
from tests.operator.recorded import NOW, UID, deployment, later, load, owned, pod, reconcile, service
from tools.status import Status
from unmask_operator.objects import API_VERSION, KIND, TEMPLATE_LABEL, Obj, Ref
from unmask_operator.plan.observed import Decision, Load, Observed
from unmask_operator.plan.plan import Plan, Problem
from unmask_operator.status import status
from unmask_operator.status.conditions.basic import NEEDED
from unmask_operator.status.transitions import Event, transitions

State = tuple[Observed, Plan]

ORDER = ["Accepted", "Scheduled", "ModelLoaded", "RolloutComplete", "ScalingReady", "UpToDate"]
ORDER += ["Protected", "SettingsConsistent", "Available", "Ready", "Stalled"]
SERVICE = Ref("v1", "Service", "demo")
SCALING: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8}}
SUSPENDED = service(suspend=True)
INVALID = Problem("Accepted", "InvalidSpec", "spec.engine.blockSize: must be at least 1")
NO_MONITOR = Problem("UpToDate", "MissingCRD", "spec.monitoring.podMonitor: the cluster has no such kind")
CONFLICT = Plan(problems=(Problem("Accepted", "NameConflict", "Service demo exists"),))
NODES = load("nodes")


def no_gpu(need: str = "1", says: str = "", **spec: Any) -> Obj:
    """Returns a pod that needs GPUs and has no node. `says` replaces the scheduler's message."""
    found = pod("unschedulable_gpu")
    found["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = need
    found["spec"] |= spec
    if says:
        found["status"]["conditions"][0]["message"] = f"0/3 nodes are available: {says}."
    return found


def of_template(obj: Obj, mark: str) -> Obj:
    obj.setdefault("metadata", {}).setdefault("labels", {})[TEMPLATE_LABEL] = mark
    return obj


def changed(state: State, spec: Obj | None = None, conditions: Any = None, **metadata: Any) -> State:
    """Returns a state with another Deployment: members of its spec, metadata and further conditions."""
    observed, plan = state
    (ref,) = (ref for ref in observed.children if ref.kind == "Deployment")
    live = copy.deepcopy(observed.children[ref])
    live["spec"] |= spec or {}
    live["metadata"] |= metadata
    live["status"] = {**live["status"], "conditions": [*live["status"].get("conditions", ()), *(conditions or ())]}
    return replace(observed, children={**observed.children, ref: live}), plan


def upgraded(*problems: Problem) -> State:
    """Returns a state after an upgrade of the operator that changes the pod template, with these problems."""
    observed, plan = reconcile("complete", "ready")
    return observed, replace(plan, problems=problems, up_to_date=False)


def refused_since(seconds: float) -> State:
    state = reconcile("quota")
    (live,) = state[0].children.values()
    for condition in live["status"]["conditions"]:
        condition["lastTransitionTime"] = (NOW - timedelta(seconds=seconds)).isoformat()
    return state


def scaled(*pods: Obj | str, **known: Any) -> State:
    """Returns the state after scaling from one replica to three, with these pods."""
    return reconcile("scaled_up", *pods, replicas=3, **{"nodes": NODES, **known})


first = partial(reconcile, "progressing")  # the first rollout
surge = partial(reconcile, "surging", "ready")  # one pod serves, one of the next template is on its way
serving = partial(reconcile, "complete", "ready")


def hpa(*conditions: Obj) -> State:
    resource = service(autoscaling={**SCALING, "provider": "HPA"})
    child = owned("autoscaling/v2", "HorizontalPodAutoscaler", "demo-engine", status={"conditions": list(conditions)})
    return reconcile("complete", "ready", resource=resource, children=[child])


def builtin(decision: Decision | None, **known: Any) -> State:
    return reconcile("complete", "ready", **{"resource": service(autoscaling=SCALING), "decision": decision, **known})


def exposed(kind: str, **spec: Any) -> State:
    return reconcile("complete", "ready", resource=service(service={"type": kind}, **spec))


EARLIER = owned("v1", "Service", "demo")
EARLIER["metadata"]["ownerReferences"][0] |= {"apiVersion": API_VERSION, "kind": KIND, "uid": f"{UID}-earlier"}
FOREIGN = {"ownerReferences": [{**owned("v1", "Service", "demo")["metadata"]["ownerReferences"][0], "uid": "other"}]}
(QUOTA,) = (c for c in load("deployments")["quota"]["conditions"] if c["type"] == "ReplicaFailure")
AUTH = {"auth": {"apiKeySecretRef": {"name": "keys", "key": "keys"}}}
ABLE = {"type": "AbleToScale", "status": "True", "reason": "SucceededGetScale", "message": "fine"}
UNABLE = {"type": "AbleToScale", "status": "False"}
ACTIVE = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "message": "fine"}
NO_METRIC = {**ACTIVE, "status": "False", "reason": "FailedGetPodsMetric", "message": "unable to get metric unmask_"}
SHORT = "Scheduled,RolloutComplete,Ready False InsufficientGPU 2 Insufficient nvidia.com/gpu ... !preemption ... "
HINT = "the old pods still serve: free a GPU or set maxSurge 0, maxUnavailable 1"
LESS = "the old pods still serve: set maxSurge 0, maxUnavailable 1 in spec.rolloutStrategy"
SERVES = "Scheduled,RolloutComplete,Available,Ready True"  # docs/operations/argo-cd.md relies on it while scaling
REFUSED, PAUSED = "Stalled True PodCreationRefused", "Stalled True DeploymentPaused"
STALLED = "Stalled True InvalidSpec"
OVERDUE = "Stalled True ProgressDeadlineExceeded"
ONE, TWO = pod("loading"), pod("loading", "other")
LOADS = {ONE["metadata"]["uid"]: Load("weights", 61.4), TWO["metadata"]["uid"]: Load("weights", 42.2)}
EDITED = of_template(later("crash_loop"), "edit")
PRESENT = {"template": of_template(deployment("created")["spec"]["template"], "present")}

# Conditions of each state. Ready is not listed where it has the reason of the first condition that is not True.
CONDITIONS = [
    # one pod on its way
    (reconcile("created"), "Scheduled False Pending", "Available False NoReadyPods"),
    (first("unschedulable_pvc"), "Scheduled False PersistentVolumeClaimNotFound weights does not exist"),
    (first("image_pull"), "ModelLoaded False ImagePullBackOff runtime:9.9.9 cannot be pulled: rpc"),
    (first("secret_missing"), 'ModelLoaded False CreateContainerConfigError "hub-token" not found'),
    (first("crash_loop"), "ModelLoaded False CrashLoopBackOff code 1: error: --page-size: 32 is nei"),
    (first("oom_killed"), "ModelLoaded False OOMKilled raise spec.resources.limits.memory"),
    (first("creating"), "ModelLoaded False Pending not started yet"),
    (first("loading"), "ModelLoaded False Starting start-up probe has not passed"),
    (first(ONE, TWO, loads=LOADS), "ModelLoaded False Loading ^the model is being loaded: weights, 42 %"),
    (first("probe_failing"), "RolloutComplete False Progressing 1 of 1 pods are of the newest temp"),
    (first("evicted"), "Scheduled False Evicted"),
    (first("terminating"), "Scheduled False Pending no pod has a node"),
    (first(later("evicted"), "loading"), "ModelLoaded False Evicted ephemeral-storage"),
    (first(no_gpu(), nodes=NODES), "Scheduled False InsufficientGPU the largest node has 4 ... busy now ... !maxSurge"),
    (first(no_gpu(nodeSelector={"a": "b"}), nodes=NODES), "Scheduled False Unschedulable may run on has any"),
    (first(no_gpu(says="1 Insufficient nvidia.com/gpu.shared")), "Scheduled False Unschedulable"),
    # pods that are refused, or late
    (reconcile("quota"), "Scheduled,RolloutComplete,Available False PodCreationRefused exceeded quota: gpus", REFUSED),
    (reconcile("pod_security"), 'Scheduled False PodCreationRefused container "helper"', REFUSED),
    (refused_since(118), "Scheduled False PodCreationRefused"),  # as while an admission webhook starts
    (refused_since(120), "Scheduled False PodCreationRefused", REFUSED),
    (reconcile("deadline_exceeded"), OVERDUE),
    (reconcile("deadline_exceeded", "probe_failing"), "RolloutComplete,Ready False ProgressDeadlineExceeded (/ready",
     OVERDUE),
    *((reconcile("deadline_exceeded", state), OVERDUE)
      for state in ("crash_loop", "image_pull", "secret_missing", "oom_killed", "unschedulable_gpu")),
    (changed(reconcile("deadline_exceeded", "loading"), generation=2),),  # the deadline of an earlier template
    (changed(surge("loading"), {"paused": True}), "RolloutComplete False DeploymentPaused", PAUSED),
    # a rollout
    (surge(later("loading")), "Available True Serving",
     "RolloutComplete False Progressing 1 of 1 pods are of the newest template, 1 of an older one remains",
     "Ready False Starting"),
    *(
        (surge(no_gpu(need), nodes=nodes), "Available True", SHORT + says)
        for need, nodes, says in (
            ("2", NODES, f"needs 2 nvidia.com/gpu and the largest node has 4, not all free; {HINT}"),
            ("8", NODES, "needs 8 nvidia.com/gpu and the largest node has 4: it never fits ... !maxSurge"),
            ("2", None, f"needs 2 nvidia.com/gpu; {HINT}"),
        )
    ),
    *((surge(no_gpu(says=f"3 Insufficient {name}")), f"Scheduled,RolloutComplete,Ready False Unschedulable {LESS}")
      for name in ("cpu", "memory")),
    (changed(serving(), generation=2), "RolloutComplete False Progressing"),
    # The older pod has the current template, as after a revert. Without a label, an earlier operator created it.
    (reconcile("surging", "loading", EDITED), "ModelLoaded False Starting", "RolloutComplete False Progressing"),
    (changed(reconcile("surging", of_template(pod("loading"), "present"), EDITED), PRESENT),
     "ModelLoaded False Starting", "RolloutComplete False Progressing"),
    (changed(reconcile("surging", of_template(pod("loading"), "edit"), EDITED), PRESENT),
     "ModelLoaded False CrashLoopBackOff"),
    # pods that serve, and more replicas
    (serving(), SERVES, "UpToDate True UpToDate", "ScalingReady,Protected absent"),
    (reconcile("ready_not_yet_available", "ready"), "Ready True Ready"),
    (reconcile("complete", "evicted", later("ready")), "Ready True"),
    (scaled("ready", later("creating", "b"), later("loading", "c")), SERVES),
    (scaled("ready", later("creating", "b"), later("crash_loop", "c")), "Ready False CrashLoopBackOff"),
    (scaled("ready", no_gpu()), SERVES, "ScalingReady False InsufficientGPU busy now"),
    (scaled("ready", no_gpu(), resource=service(autoscaling=SCALING), decision=Decision(3, "scaled up", True)), SERVES,
     "ScalingReady False InsufficientGPU busy now"),
    (scaled("ready", no_gpu(), resource=service(autoscaling=SCALING), decision=Decision(3, "no metrics", False)),
     SERVES, "ScalingReady False MetricsMissing"),
    (changed(scaled("ready"), conditions=[QUOTA]), SERVES, "ScalingReady False PodCreationRefused"),
    # the autoscaler
    (builtin(None), "ScalingReady Unknown Waiting has not read", "Ready True"),
    (builtin(Decision(2, "fits", True, NOW)), "ScalingReady True Active the operator reads", "Ready True"),
    (builtin(Decision(2, "no metrics", False)), "ScalingReady False MetricsMissing no metrics", "Ready True"),
    (hpa(), "ScalingReady Unknown Waiting has not read"),
    (hpa(ABLE, ACTIVE), "ScalingReady True Active"),
    (hpa(ABLE, NO_METRIC), "ScalingReady False FailedGetPodsMetric unable to get metric unmask_"),
    (hpa(UNABLE), "ScalingReady False NotAbleToScale NotAbleToScale"),
    (hpa({**UNABLE, "reason": "", "message": "no"}), "ScalingReady False NotAbleToScale no"),
    # no pod is wanted
    (reconcile("created", replicas=0, resource=SUSPENDED), "Scheduled,ModelLoaded,RolloutComplete,ScalingReady absent",
     "Available,Ready False Suspended", "Stalled True Suspended"),
    (reconcile("created", replicas=0), "Available False NoReplicas", "Stalled True NoReplicas"),
    (serving(replicas=0, resource=SUSPENDED), "Ready False Suspended"),  # the pod ends
    # the spec and the children
    (serving(resource=service(2, model=7), plan=Plan(problems=(INVALID,))),
     f"Accepted False InvalidSpec {INVALID.message}", "RolloutComplete,Available True", STALLED),
    ((Observed(resource=service(), now=NOW), Plan(problems=(INVALID,))), "Scheduled,UpToDate absent",
     "Available False NotAccepted", STALLED),
    (reconcile("complete", resource=SUSPENDED, plan=Plan(problems=(INVALID,))), "Ready False InvalidSpec", STALLED),
    (reconcile("created", plan=CONFLICT), "Accepted False NameConflict", "Stalled True NameConflict"),
    (reconcile("created", plan=CONFLICT, children=[EARLIER]), "Accepted False NameConflict"),  # it is being deleted
    (serving(refusals={SERVICE: "nodePort: already allocated"}),
     "Accepted False Refused Service demo was refused: nodePort: already", "Stalled True Refused"),
    (serving(failures={SERVICE: "webhook is away"}), "Accepted Unknown ApiError Service demo"),
    (changed(reconcile("complete"), **FOREIGN), "RolloutComplete False"),
    (upgraded(NO_MONITOR), f"UpToDate False MissingCRD {NO_MONITOR.message}", "Ready True"),
    (upgraded(), "UpToDate False OperatorUpgraded", "Ready True"),
    (exposed("LoadBalancer"), "Protected False NoAuth", "Ready True"),
    (exposed("LoadBalancer", **AUTH), "Protected True KeyRequired"),
    (exposed("NodePort"), "Protected absent"),
]  # fmt: skip


@pytest.mark.parametrize("row", CONDITIONS)
def test_conditions(row: Any) -> None:
    state, *expected = row
    observed, plan = state
    new = status(*state)
    Status.model_validate(new)  # checks the limits of the schema
    found = {c["type"]: c for c in new["conditions"]}
    assert list(found) == [kind for kind in ORDER if kind in found]
    assert {c["observedGeneration"] for c in found.values()} == {observed.resource["metadata"]["generation"]}
    check(found, *expected)
    assert ("Stalled" in found) == any(line.startswith("Stalled") for line in expected)
    ready = found["Ready"]
    if ready["reason"] != "Suspended":
        causes = [found[kind] for kind in NEEDED if kind in found and found[kind]["status"] != "True"]
        assert ready["status"] == str(not causes)
        assert [(c["reason"], c["message"]) for c in causes[:1]] == [(ready["reason"], ready["message"])] * bool(causes)
    events = transitions({}, new)
    assert len({(event.type, event.reason) for event in events}) == len(events)
    assert "Stalled" not in {event.reason for event in events}
    resource = {**observed.resource, "status": new}
    leader = replace(observed, resource=resource, now=NOW + timedelta(seconds=1), decision=None)
    assert status(leader, plan) == new, "a new leader writes another status of an unchanged state"


@pytest.mark.parametrize(
    "states", [("crash_loop", "crash_loop_ended", "crash_loop_running"), ("image_pull", "image_pull_error")]
)
def test_the_status_does_not_change_between_retries_of_the_kubelet(states: tuple[str, ...]) -> None:
    first, *others = [status(*reconcile("progressing", state)) for state in states]
    assert all(one == first for one in others)


# -- members other than the conditions


def test_the_status_of_a_ready_service() -> None:
    new = status(*reconcile("complete", "ready"))
    del new["conditions"]
    assert new == {
        "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1,
        "selector": "serving.unmask.dev/service=demo", "url": "http://demo.models.svc/v1", "modelName": "demo",
        "resolvedImage": "registry.example/unmask-runtime:0.1.0", "modelLoad": {"phase": "loaded", "percent": 100},
        "addresses": [{"name": "internal", "url": "http://demo.models.svc/v1"}],
    }  # fmt: skip


EXITED = pod("crash_loop_running")
POET = service(model={"uri": "demo://", "name": "poet"}, service={"port": 8080})
MINUTE_AGO = NOW - timedelta(minutes=1)


@pytest.mark.parametrize(
    ("state", "members"),
    [
        (reconcile("complete", "ready", resource=POET), {"modelName": "poet", "url": "http://demo.models.svc:8080/v1"}),
        (reconcile("progressing", ONE, TWO, loads=LOADS), {"modelLoad": {"phase": "weights", "percent": 42}}),
        (reconcile("progressing", EXITED, loads={EXITED["metadata"]["uid"]: Load("a", 4)}), {"modelLoad": None}),
        (changed(reconcile("complete"), **FOREIGN), {"replicas": 0}),
        ((Observed(service(), NOW), Plan()), {"selector": "serving.unmask.dev/service=demo"}),
        (builtin(None), {"autoscaling": None}),
        (builtin(Decision(2, "no metrics", False, MINUTE_AGO)),
         {"autoscaling": {"desired": 2, "reason": "no metrics"}, "lastScaleTime": "2030-01-01T02:59:00Z"}),
    ],
)  # fmt: skip
def test_members(state: State, members: Obj) -> None:
    new = status(*state)
    assert {member: new.get(member) for member in members} == members


def test_conditions_keep_their_time_until_their_status_changes() -> None:
    resource = service() | {"status": status(*reconcile("created"))}
    new = status(*reconcile("progressing", "loading", resource=resource, now=NOW + timedelta(hours=1)))
    times = {c["type"]: c["lastTransitionTime"] for c in new["conditions"]}
    assert times["ModelLoaded"] == "2030-01-01T03:00:00Z"
    assert times["Scheduled"] == "2030-01-01T04:00:00Z"


# -- revisions


def pin(number: int, template: int | None = None) -> Obj:
    data = {"spec": {}, "restartedAt": "", "image": "", "template": {"number": template or number}}
    return owned("apps/v1", "ControllerRevision", f"demo-r{number}", revision=number, data=data)


NOT_TAKEN = Plan(reconcile("complete")[1].children, 1, problems=(Problem("Accepted", "Refused", "no"),))


@pytest.mark.parametrize("stage", ["complete", "ready_not_yet_available"])
@pytest.mark.parametrize(
    ("pins", "known", "unobserved", "ready", "current"),
    [
        ([pin(1)], {"replicas": 3}, True, "True", "demo-r1"),  # scaled
        ([pin(1)], {}, True, "True", "demo-r1"),
        ([pin(1), pin(2, template=1)], {}, True, "True", "demo-r2"),  # an edit of rolloutStrategy, for example
        ([pin(1), pin(2)], {}, True, "False Progressing", "demo-r1"),
        ([pin(1), pin(2)], {}, False, "True", "demo-r2"),
        ([pin(1), pin(2)], {"plan": NOT_TAKEN}, False, "False Refused", "demo-r1"),
    ],
)
def test_ready_changes_only_with_the_pods_also_before_the_deployment_is_observed(
    stage: str, pins: list[Obj], known: Obj, unobserved: bool, ready: str, current: str
) -> None:
    before = status(*reconcile(stage, "ready", children=[pin(1)]))
    assert before["currentRevision"] == "demo-r1"
    state = reconcile(stage, "ready", resource=service(2) | {"status": before}, children=pins, **known)
    new = status(*(changed(state, generation=2) if unobserved else state))
    check({c["type"]: c for c in new["conditions"]}, f"Ready {ready}")
    assert new["currentRevision"] == current
    assert (transitions(before, new) == []) == (ready == "True")


# -- Events

LOADING = pod("loading")


@pytest.mark.parametrize(
    "steps",
    [
        [
            (reconcile("created"), ["Accepted"]),
            (reconcile("progressing", "creating"), []),
            (reconcile("progressing", LOADING), []),
            (reconcile("progressing", LOADING, loads={LOADING["metadata"]["uid"]: Load("weights", 10)}), []),
            (reconcile("complete", "ready"), ["Ready"]),
            (reconcile("surging", "ready", later("loading", "new")), ["RolloutStarted"]),
            (reconcile("complete", pod("ready", "new")), ["ModelLoaded", "RolloutComplete", "Ready"]),
            (reconcile("progressing", "oom_killed"), ["!Unavailable"]),
            (reconcile("complete", "ready", replicas=0, resource=SUSPENDED), ["Suspended"]),  # its pod is terminating
            (reconcile("progressing", replicas=0, resource=SUSPENDED), []),
        ],
        [(reconcile("created"), ["Accepted"]), (reconcile("quota"), ["!PodCreationRefused"]),
         (reconcile("progressing", "crash_loop"), ["!CrashLoopBackOff"])],
        [(reconcile("complete", "ready"), ["Accepted", "Ready"]), (upgraded(), ["OperatorUpgraded"])],
        [(exposed("ClusterIP"), ["Accepted", "Ready"]), (exposed("LoadBalancer"), ["!NoAuth"])],
    ],
)  # fmt: skip
def test_events_between_states(steps: list[tuple[State, list[str]]]) -> None:
    """A Warning begins with "!"."""
    old: Obj = {}
    for state, expected in steps:
        new = status(*state)
        assert [("!" if e.type == "Warning" else "") + e.reason for e in transitions(old, new)] == expected
        old = new


def test_scaling_emits_an_event_with_its_reason() -> None:
    why = "scaled up for runningRequestsPerReplica"
    old, new, rest = (
        status(*builtin(Decision(desired, reason, True, at)))
        for desired, reason, at in ((1, "at rest", None), (3, why, MINUTE_AGO), (3, "at rest", MINUTE_AGO))
    )
    assert transitions(old, new) == [Event("Normal", "Scaled", f"from 1 to 3 replicas: {why}")]
    assert [e.message for e in transitions({}, new) if e.reason == "Scaled"] == [f"to 3 replicas: {why}"]
    assert transitions(new, rest) == []

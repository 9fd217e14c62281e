"""States of pods and nodes, the conditions that follow from them, and a short form for the expected conditions."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.operator.samples import SETTINGS, make, running, template
from unmask_operator.objects import Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.settings import Settings
from unmask_operator.status import status

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


def make_pod(observed: Observed, pod_status: Obj, node: str | None = "n1", **spec: Any) -> Obj:
    """Returns a pod of the resource's template with this status. `spec` replaces members of its spec."""
    rendered = template(make(observed))
    pod_spec = {**copy.deepcopy(rendered["spec"]), **({"nodeName": node} if node else {}), **spec}
    labels = rendered["metadata"]["labels"]
    meta = {"name": "demo-p1", "namespace": "default", "uid": "p1", "labels": labels}
    meta["creationTimestamp"] = "2026-01-02T03:00:00Z"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec, "status": pod_status}


def observe_pod(
    pod_status: Obj, node: str | None = "n1", nodes: Sequence[Obj] | None = None, *, pod_spec: Obj | None = None,
    settings: Settings = SETTINGS, deployment: Obj | None = None, **spec: Any,
) -> Observed:  # fmt: skip
    """Returns the observed state of a first rollout whose only pod has this status.

    `pod_spec` and `deployment` replace members of the pod's spec and of the Deployment's status. `spec` has members of
    the resource's spec. `nodes` is None if the operator may not read nodes.
    """
    observed = running(settings, **spec)
    live = observed.children[Ref("apps/v1", "Deployment", "demo")]
    live["metadata"].update(generation=1, uid="d1")
    counts = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1}
    live["status"] = {**counts, **(deployment or {})}
    return replace(observed, pods=[make_pod(observed, pod_status, node, **(pod_spec or {}))], nodes=nodes)


def judge(observed: Observed, plan: Plan | None = None) -> dict[str, Obj]:
    """Returns the conditions by type. The default plan is that of the operator."""
    return {c["type"]: c for c in status(observed, plan or make(observed))["conditions"]}


def check(found: Mapping[str, Obj], *expected: str) -> None:
    """Asserts conditions, each line as "Type,Type Status Reason part ... another part" or "Type absent".

    Parts of the message are in any order. It starts with a part after "^", and does not contain one after "!".
    """
    for line in expected:
        kinds, status, reason, parts = [*line.split(" ", 3), "", ""][:4]
        for kind in kinds.split(","):
            if status == "absent":
                assert kind not in found, found[kind]
                continue
            seen = found[kind]
            assert (seen["status"], seen["reason"]) == (status, reason or seen["reason"]), seen
            for part in parts.split(" ... "):
                at = seen["message"].find(part.lstrip("^!"))
                assert at < 0 if part[:1] == "!" else at == 0 if part[:1] == "^" else at >= 0, (part, seen)


def unschedulable(message: str) -> Obj:
    found = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [found]}


def gpu_node(name: str, gpus: str | None = "8", resource: str = "nvidia.com/gpu", **spec: Any) -> Obj:
    allocatable = {resource: gpus} if gpus else {}
    return {"metadata": {"name": name, "labels": {}}, "spec": spec, "status": {"allocatable": allocatable}}


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Obj:
    return {"key": key, "value": value, "effect": effect}


def container(name: str = "main", **state: Any) -> Obj:
    return {"name": name, "image": "i", "ready": False, "started": False, "restartCount": 0, **state}


def started_pod(
    *containers: Obj, ready_reason: str = "", ready_message: str = "", main_ready: bool = True, **members: Any
) -> Obj:
    """Returns the status of a pod whose engine has loaded its model and that is not Ready.

    `containers` are statuses of the other containers. `members` are further members of the status.
    """
    statuses = [container(ready=main_ready, started=True, state=RUNNING), *containers]
    ready = {"type": "Ready", "status": "False"}
    ready |= {k: v for k, v in (("reason", ready_reason), ("message", ready_message)) if v}
    all_ready = {"type": "ContainersReady", "status": str(all(c["ready"] for c in statuses))}
    conditions = [ready, all_ready, SCHEDULED, *members.pop("conditions", ())]
    return {"phase": "Running", "containerStatuses": statuses, "conditions": conditions, **members}

"""Tests that the operator uses exactly the permissions that it is granted."""

from typing import Any

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import ACCOUNT, EVERY_RULE, OperatorProcess, activator_pod, install, reset_lease
from tests.operator.live.objects import (
    POD_MONITOR_CRD,
    SCALED_OBJECT_CRD,
    accepted,
    demo,
    gateway_crds,
    lws_crd,
    policy,
    updates,
    wait_condition,
)
from unmask_operator.controller.adapters import LIST_HASH
from unmask_operator.kinds import CHILDREN, ENDPOINT_SLICES, LEADER_WORKER_SETS, ApiKind, kind_of
from unmask_operator.objects import SERVICE_LABEL

pytestmark = pytest.mark.cluster

EVERYTHING = {
    "model": {"uri": "hf://org/name"}, "networkPolicy": {}, "replicas": 2, "monitoring": {"podMonitor": {}},
    "podDisruptionBudget": {"maxUnavailable": 1}, "serviceAccount": {"annotations": {"a": "1"}},
    "service": {"annotations": {"a": "1"}}, "autoscaling": {"provider": "KEDA", "maxReplicas": 3},
    "route": {"parentRefs": [{"name": "public"}]}, "inferencePool": {},
    "gpu": {"deviceClassName": "gpu.example.com"},
}  # fmt: skip

GROUP = {"gpu": {}, "parallelism": {"tensor": 2, "nodes": 2}}
ASLEEP = {"minReplicas": 0, "maxReplicas": 2, "zero": {}}
DELETED = (
    *("NetworkPolicy", "PodMonitor", "ScaledObject", "PodDisruptionBudget", "ConfigMap"),
    *("HTTPRoute", "InferencePool", "ResourceClaimTemplate"),
)


def used(api: ApiServer, account: str) -> set[str]:
    """Returns the used permissions in the format of permissions.missing().

    An update of finalizers is never a request of its own, so the test handles it separately.
    """
    asked = set()
    for event in api.requests(account):
        ref = event.get("objectRef")
        if ref and event["responseStatus"].get("code") != 404:
            resource = "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)
            asked.add(f"{ref.get('apiGroup', '')}/{resource} {event['verb']}")
    return asked


def test_the_used_permissions_are_the_granted_ones(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    for definition in (POD_MONITOR_CRD, SCALED_OBJECT_CRD, *gateway_crds(), lws_crd()):
        admin.define(definition)
    install(api_server, admin, namespace, [namespace])
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    admin.delete({**lease, "metadata": {"name": "unmask-operator", "namespace": namespace}})
    account = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    with OperatorProcess(api_server, namespace, [namespace]) as operator:
        admin.wait("the Lease is made", lambda: admin.find(lease["apiVersion"], lease["kind"], ACCOUNT, namespace))
        reset_lease(admin, namespace)  # a new Lease cannot be acquired immediately
        activator_pod(admin, namespace)
        one_of_each_kind(admin, namespace)
        a_pod_without_a_word(admin, namespace)
        a_pod_that_follows_a_list(admin, namespace)
        a_workload_of_which_only_replicas_are_taken(admin, namespace, kind_of("apps/v1", "Deployment"), "denied")
        a_workload_of_which_only_replicas_are_taken(admin, namespace, LEADER_WORKER_SETS, "group-denied", **GROUP)
        admin.wait("a look at its Events", lambda: "events.k8s.io/events list" in used(api_server, account))
        assert operator.terminate() == 0
        log = operator.log()
    events = api_server.requests(account)
    refused = {e["requestURI"] for e in events if e["responseStatus"].get("code") == 403}
    assert refused == set(), log
    granted = {f"{r.group}/{r.resource} {verb}" for r in EVERY_RULE for verb in r.verbs}
    asked = used(api_server, account)
    assert asked - granted == set()
    # The admission plugin checks the permission to `update` finalizers when a child names its owner.
    # OpenShift's plugin checks the addresses of EndpointSlices.
    unused = (
        granted
        - asked
        - {
            "serving.unmask.dev/diffusionlmservices/finalizers update",
            "discovery.k8s.io/endpointslices/restricted create",
        }
    )
    assert unused == set()


def one_of_each_kind(admin: Kube, namespace: str) -> None:
    """Makes the operator create, read, change and delete every kind of child, and scale."""
    every = accepted(admin, demo(namespace, "every", **EVERYTHING))
    targets = {"queuedRequestsPerReplica": 4}
    scaling = {"provider": "HPA", "maxReplicas": 3, "targets": targets}
    hpa = accepted(admin, demo(namespace, "hpa", autoscaling=scaling))
    # A child without its label is not in the cache, so a create conflicts. The operator reads it and writes it again.
    accepted(admin, demo(namespace, "group", **GROUP))
    zero = accepted(admin, demo(namespace, "zero", replicas=0, autoscaling=ASLEEP))
    others = ("HorizontalPodAutoscaler", "EndpointSlice", "LeaderWorkerSet")
    kinds = [kind for kind in CHILDREN if kind.kind not in others]
    stripped = [obj for kind in kinds for obj in _strip(admin, namespace, kind, "every")]
    stripped += _strip(admin, namespace, LEADER_WORKER_SETS, "group")
    assert {obj["kind"] for obj in stripped} == {kind.kind for kind in (*kinds, LEADER_WORKER_SETS)}
    (hpa_child,) = _strip(admin, namespace, kind_of("autoscaling/v2", "HorizontalPodAutoscaler"), "hpa")
    (endpoints,) = _strip(admin, namespace, ENDPOINT_SLICES, "zero")
    admin.patch(zero, {"spec": {"drainTimeoutSeconds": 61}})  # no watch reports EndpointSlices
    for obj in (*stripped, hpa_child, endpoints):
        name = obj["metadata"]["name"]
        admin.wait(f"{obj['kind']} {name} has its label again", lambda obj=obj: _is_labelled(admin, obj))
    builtin = {"provider": "Builtin", "minReplicas": 2, "maxReplicas": 3, "targets": targets}
    admin.patch(hpa, {"spec": {"autoscaling": builtin}})  # deletes the HPA; 1 replica is out of bounds
    admin.wait("scaled", lambda: admin.get(hpa["apiVersion"], hpa["kind"], "hpa", namespace)["spec"]["replicas"] == 2)
    admin.wait("no HorizontalPodAutoscaler", lambda: _is_gone(admin, hpa_child))
    admin.patch(zero, {"spec": {"autoscaling": None}})
    admin.wait("no EndpointSlice", lambda: _is_gone(admin, endpoints))
    gone = {"model": {"uri": "demo://"}, "networkPolicy": None, "monitoring": None, "replicas": 1, "suspend": True}
    gone |= {"route": None, "inferencePool": None, "gpu": None}
    admin.patch(every, {"spec": gone})
    for number in range(5):  # more revisions than are retained, so old ones are deleted
        admin.patch(every, {"spec": {"engine": {"maxNumReqs": 10 + number}}})
        wait_condition(admin, every, "Accepted", "True")
    # While suspended, the resource needs no budget. The ConfigMap of commits is deleted with the last revision that
    # uses it.
    for obj in stripped:
        if obj["kind"] in DELETED:
            admin.wait(f"no {obj['kind']}", lambda obj=obj: _is_gone(admin, obj))
    first = next(obj for obj in stripped if obj["kind"] == "ControllerRevision")
    admin.wait("the first pin is gone", lambda: _is_gone(admin, first))


def create_pod(admin: Kube, namespace: str, name: str, service: str, status: dict, **spec: Any) -> dict:
    meta = {"name": name, "namespace": namespace, "labels": {SERVICE_LABEL: service}}
    spec |= {"nodeName": "somewhere", "containers": [{"name": "main", "image": "engine:1"}]}
    pod = admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    admin.patch(pod, {"status": status}, subresource="status")
    return pod


def a_pod_without_a_word(admin: Kube, namespace: str) -> None:
    """Creates a pod that has been on a node for long without starting. Only its Events may explain why."""
    waits = {"name": "main", "image": "engine:1", "imageID": "", "ready": False, "restartCount": 0}
    waits["state"] = {"waiting": {"reason": "ContainerCreating"}}
    status = {"phase": "Pending", "startTime": "2020-01-01T00:00:00Z", "containerStatuses": [waits]}
    create_pod(admin, namespace, "stuck", "every", status)


def a_pod_that_follows_a_list(admin: Kube, namespace: str) -> None:
    """Creates a pod that serves adapters, so that the operator annotates it with the hash of the list."""
    admin.create(demo(namespace, "list", lora={"adapters": [{"name": "roman", "uri": "demo://roman"}]}))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    volume = {"name": "adapters", "configMap": {"name": "list-adapters"}}
    pod = create_pod(admin, namespace, "follows", "list", ready, volumes=[volume])
    admin.wait("its annotation", lambda: LIST_HASH in (_live(admin, pod)["metadata"].get("annotations") or {}))


def a_workload_of_which_only_replicas_are_taken(
    admin: Kube, namespace: str, kind: ApiKind, name: str, **spec: Any
) -> None:
    """Makes admission deny every update of a service's workload except that of its scale."""
    resource = accepted(admin, demo(namespace, name, **spec))
    (live,) = admin.list(kind.api_version, kind.kind, namespace, labelSelector=f"{SERVICE_LABEL}={name}")
    with policy(admin, namespace):
        admin.wait("the policy holds", lambda: not updates(admin, live))
        admin.patch(resource, {"spec": {"replicas": 3}})
        admin.wait("scaled", lambda: _live(admin, live)["spec"]["replicas"] == 3)


def _strip(admin: Kube, namespace: str, kind: ApiKind, service: str) -> list[dict]:
    """Removes the label from a service's children of one kind."""
    found = admin.list(kind.api_version, kind.kind, namespace, labelSelector=f"{SERVICE_LABEL}={service}")
    for obj in found:
        admin.patch(obj, {"metadata": {"labels": {SERVICE_LABEL: None, "stripped": "yes"}}})
    return found


def _is_labelled(admin: Kube, obj: dict) -> bool:
    return SERVICE_LABEL in _live(admin, obj)["metadata"]["labels"]


def _is_gone(admin: Kube, obj: dict) -> bool:
    return _live(admin, obj) is None


def _live(admin: Kube, obj: dict) -> dict | None:
    meta = obj["metadata"]
    return admin.find(obj["apiVersion"], obj["kind"], meta["name"], meta["namespace"])

"""Tests of the status with a real controller-manager. No kubelet runs: the tests write the pods' status."""

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, cluster_wide
from tests.operator.live.objects import Obj, condition, demo, read, wait_all_true, wait_condition
from unmask_operator.controller.event_recorder import event_object
from unmask_operator.objects import SERVICE_LABEL
from unmask_operator.status.transitions import Event

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]


@pytest.fixture
def namespace(controlled_namespace: str) -> str:
    return controlled_namespace


@pytest.fixture
def admin(controlled_admin: Kube) -> Kube:
    return controlled_admin


@pytest.fixture(scope="module")
def operator(controlled_api_server: ApiServer, controlled_admin: Kube) -> Iterator[OperatorProcess]:
    """Yields one operator of the whole cluster for all tests of the module."""
    yield from cluster_wide(controlled_api_server, controlled_admin)


# A simulated kubelet


def first_pod(kube: Kube, resource: Obj) -> Obj:
    """Returns the first pod of the resource, after its ReplicaSet has created it."""
    meta = resource["metadata"]
    label = f"{SERVICE_LABEL}={meta['name']}"
    return kube.wait("a pod", lambda: kube.list("v1", "Pod", meta["namespace"], labelSelector=label))[0]


def make_node(kube: Kube, gpus: str) -> Obj:
    node = kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n-{secrets.token_hex(4)}"}})
    capacity = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus}
    kube.patch(node, {"status": {"capacity": capacity, "allocatable": capacity}}, subresource="status")
    return node


def run(kube: Kube, pod: Obj, address: str, *, started: bool, ready: bool, last: Obj | None = None) -> None:
    """Writes the status of a running pod, as its kubelet does."""
    image = pod["spec"]["containers"][0]["image"]
    main = {"name": "main", "image": image, "imageID": "", "restartCount": int(bool(last)), "lastState": last or {}}
    main |= {"ready": ready, "started": started, "state": {"running": {"startedAt": "2030-01-01T00:00:00Z"}}}
    conditions = [{"type": kind, "status": str(ready)} for kind in ("Ready", "ContainersReady")]
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "containerStatuses": [main]}
    conditions.append({"type": "PodScheduled", "status": "True"})
    kube.patch(pod, {"status": {**status, "conditions": conditions}}, subresource="status")


def bind(kube: Kube, pod: Obj, node: Obj) -> None:
    meta = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    path = kube.path("v1", "Pod", meta["namespace"], meta["name"], "binding")
    target = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"]}
    kube.request("POST", path, {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target})


def test_a_pod_without_gpu_then_crashing_then_ready_and_an_edit_that_does_not_change_it(admin, namespace):
    node = make_node(admin, "1")
    resource = admin.create(demo(namespace, gpu={}, parallelism={"tensor": 2}))
    pod = first_pod(admin, resource)
    sentence = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": sentence}
    admin.patch(pod, {"status": {"conditions": [unscheduled]}}, subresource="status")
    says = "needs 2 nvidia.com/gpu and the largest node has 1: it never fits"
    wait_condition(admin, resource, "Ready", "False", "InsufficientGPU", says)

    bind(admin, pod, node)
    ended = {"exitCode": 1, "reason": "Error", "message": "INFO starting\nerror: --page-size: 32 does not fit\n"}
    run(admin, pod, "127.0.0.1", started=False, ready=False, last={"terminated": ended})
    says = "container main ended with exit code 1: error: --page-size: 32 does not fit"
    wait_condition(admin, resource, "Ready", "False", "CrashLoopBackOff", says)

    run(admin, pod, "127.0.0.1", started=True, ready=True)
    wait_all_true(admin, resource)
    status = read(admin, resource)["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (1, 1, 1)
    assert status["currentRevision"] == "demo-r1"

    admin.patch(resource, {"spec": {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}}})
    admin.wait("demo-r2", lambda: read(admin, resource)["status"]["currentRevision"] == "demo-r2")
    wait_all_true(admin, resource)
    assert "RolloutStarted" not in {event["reason"] for event in admin.list("events.k8s.io/v1", "Event", namespace)}
    admin.delete(node)


def test_a_pod_that_flaps_makes_no_event_per_flap(admin, namespace):
    resource = admin.create(demo(namespace))
    pod = first_pod(admin, resource)
    node = make_node(admin, "0")
    bind(admin, pod, node)
    run(admin, pod, "127.0.0.1", started=True, ready=True)
    wait_condition(admin, resource, "Available", "True")
    for _ in range(3):
        for ready in (False, True):
            run(admin, pod, "127.0.0.1", started=True, ready=ready)
            wait_condition(admin, resource, "Available", str(ready))
    reasons = [event["reason"] for event in admin.list("events.k8s.io/v1", "Event", namespace)]
    assert [reasons.count(reason) for reason in ("Ready", "Unavailable", "ReadinessProbeFailed")] == [1, 1, 0]
    series = event_object(
        read(admin, resource), Event("Normal", "Ready", "again"), "operator-0", datetime.now(UTC), count=3
    )
    assert admin.create(series)["series"]["count"] == 3, "the API server refuses a new Event with a series"
    admin.delete(node)


def test_an_edit_that_needs_an_action_ends_the_waits_of_flux_and_helm(admin, namespace):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Ready", "False", "Pending")
    assert condition(admin, resource, "Stalled") == {}
    admin.patch(resource, {"spec": {"podTemplate": {"spec": {"containers": [{"name": "side"}]}}}})
    wait_condition(admin, resource, "Stalled", "True", "Refused")
    admin.patch(resource, {"spec": {"podTemplate": None}})
    wait_condition(admin, resource, "Ready", "False", "Pending")
    assert condition(admin, resource, "Stalled") == {}

"""Tests of the status with a real controller-manager. No kubelet runs: the tests write the pods' status."""

from collections.abc import Iterator

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, cluster_wide
from tests.operator.live.kubelet import bind, first_pod, make_node, run
from tests.operator.live.objects import condition, demo, read, wait_all_true, wait_condition

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


def test_an_edit_that_needs_an_action_ends_the_waits_of_flux_and_helm(admin, namespace):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Ready", "False", "Pending")
    assert condition(admin, resource, "Stalled") == {}
    admin.patch(resource, {"spec": {"podTemplate": {"spec": {"containers": [{"name": "side"}]}}}})
    wait_condition(admin, resource, "Stalled", "True", "Refused")
    admin.patch(resource, {"spec": {"podTemplate": None}})
    wait_condition(admin, resource, "Ready", "False", "Pending")
    assert condition(admin, resource, "Stalled") == {}

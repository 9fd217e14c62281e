"""Tests of the status with a real controller-manager. No kubelet runs: the tests write the pods' status."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, cluster_wide
from tests.operator.live.kubelet import bind, engine, first_pod, make_node, run
from tests.operator.live.objects import demo, read, wait_all_true, wait_condition

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("scribe")]


@pytest.fixture
def namespace(controlled_namespace: str) -> str:
    return controlled_namespace


@pytest.fixture
def admin(controlled_admin: Kube) -> Kube:
    return controlled_admin


@pytest.fixture(scope="module")
def scribe(controlled_api_server: ApiServer, controlled_admin: Kube) -> Iterator[OperatorProcess]:
    """Yields one operator of the whole cluster for all tests of the module."""
    yield from cluster_wide(controlled_api_server, controlled_admin)


def test_a_quota_that_refuses_the_pods(admin, namespace):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": namespace}}
    admin.create({**quota, "spec": {"hard": {"pods": "0"}}})
    admin.wait("the quota counts", lambda: admin.get("v1", "ResourceQuota", "none", namespace)["status"].get("hard"))
    resource = admin.create(demo(namespace))
    assert "exceeded quota: none" in wait_condition(admin, resource, "Ready", "False", "PodCreationRefused")["message"]


def test_the_status_of_a_pod_without_gpu_then_crashing_then_ready(admin, namespace):
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
    found = wait_condition(admin, resource, "Ready", "False", "CrashLoopBackOff")["message"]
    assert found == "container main ended with exit code 1: error: --page-size: 32 does not fit"

    run(admin, pod, "127.0.0.1", started=True, ready=True)
    wait_all_true(admin, resource)
    status = read(admin, resource)["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (1, 1, 1)
    assert {c["type"]: c["status"] for c in status["conditions"]} == dict.fromkeys(
        ("Accepted", "Scheduled", "ModelLoaded", "RolloutComplete", "UpToDate", "Available", "Ready"), "True"
    )
    admin.delete(node)


def test_ready_does_not_change_on_an_edit_that_does_not_change_the_pods(admin, namespace):
    node = make_node(admin, "0")
    resource = admin.create(demo(namespace))
    pod = first_pod(admin, resource)
    bind(admin, pod, node)
    run(admin, pod, "127.0.0.1", started=True, ready=True)
    wait_all_true(admin, resource)
    before = read(admin, resource)["status"]
    assert before["currentRevision"] == "demo-r1"
    time.sleep(1.1)  # times of conditions are whole seconds, so a later transition gets another time

    for number, edit in enumerate(({"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 2}, None), start=2):
        admin.patch(resource, {"spec": {"rolloutStrategy": edit}})
        wait = f"demo-r{number}"
        admin.wait(wait, lambda wait=wait: read(admin, resource)["status"]["currentRevision"] == wait)
        time.sleep(1.1)
    after = read(admin, resource)["status"]["conditions"]
    times = {c["type"]: c["lastTransitionTime"] for c in before["conditions"]}
    assert {c["type"]: c["lastTransitionTime"] for c in after} == times
    admin.delete(node)


def test_the_hpas_message_is_quoted_when_no_metrics_adapter_runs(admin, namespace):
    targets = {"runningRequestsPerReplica": 4}
    resource = admin.create(demo(namespace, autoscaling={"provider": "HPA", "maxReplicas": 3, "targets": targets}))
    # FailedGetScale precedes it until the controller-manager has discovered the CRD, which may take a minute
    found = wait_condition(admin, resource, "ScalingReady", "False", "FailedGetPodsMetric")
    assert "unmask_requests_running" in found["message"]


def test_the_builtin_autoscaler_scales_up_and_down(admin, namespace):
    load = {"waiting": 25.0, "running": 4.0}
    autoscaling = {
        "maxReplicas": 4,
        "targets": {"queuedRequestsPerReplica": 10},
        "pollingIntervalSeconds": 1,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 3}},
    }

    def metrics() -> str:
        lines = (f"unmask_requests_{name} {value}" for name, value in load.items())
        return "\n".join((*lines, "unmask_kv_usage_ratio 0.1")) + "\n"

    with engine({"/metrics": metrics}) as address:
        resource = admin.create(demo(namespace, autoscaling=autoscaling))
        run(admin, first_pod(admin, resource), address, started=True, ready=True)
        wait_condition(admin, resource, "ScalingReady", "True")
        admin.wait("three replicas", lambda: read(admin, resource)["spec"]["replicas"] == 3)
        load["waiting"] = 0.0
        admin.wait("one replica", lambda: read(admin, resource)["spec"]["replicas"] == 1)
        admin.wait("the decision", lambda: read(admin, resource)["status"]["autoscaling"]["desired"] == 1)
        assert "lastScaleTime" in read(admin, resource)["status"]
        admin.wait("the Deployment", lambda: read(admin, resource)["status"]["replicas"] == 1)
    notes = [event["note"] for event in admin.events(namespace, "Scaled", at_least=2)]
    assert any(note.endswith("to 3 replicas: scaled up for queuedRequestsPerReplica") for note in notes)
    assert "from 3 to 1 replicas: scaled down: all samples in the stable window required fewer replicas" in notes

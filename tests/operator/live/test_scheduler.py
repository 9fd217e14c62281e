"""Tests of the status with a real scheduler and the Deployment controller. kwok simulates the nodes and their pods."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import ApiServer, Kube, start_api_server
from e2e.cluster.config import environment
from e2e.cluster.operator_process import OperatorProcess, cluster_wide
from tests.operator.live.objects import demo, wait_condition
from unmask_operator.objects import RESTARTED_AT

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]
GPUS, NO_GPUS = "pretend-0", "pretend-1"  # a node with two GPUs, and one without
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}


@pytest.fixture(scope="module")
def scheduled_api_server() -> Iterator[ApiServer]:
    if environment().kubeconfig:
        pytest.skip("taints nodes, which only a cluster of the suite's own may have")
    with start_api_server(nodes=2) as server:
        yield server


@pytest.fixture(scope="module")
def kube(scheduled_api_server: ApiServer) -> Iterator[Kube]:
    client = scheduled_api_server.admin()
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "2"}
    node = client.get("v1", "Node", GPUS)
    client.patch(node, {"status": {"capacity": capacity, "allocatable": capacity}}, subresource="status")
    yield client
    client.close()


@pytest.fixture(scope="module")
def operator(scheduled_api_server: ApiServer, kube: Kube) -> Iterator[OperatorProcess]:
    yield from cluster_wide(scheduled_api_server, kube)


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """Yields a new namespace. Afterwards the nodes accept all pods again."""
    name = f"test-{secrets.token_hex(4)}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    kube.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for node in (GPUS, NO_GPUS):
        change_node(kube, node, taints=None)


def change_node(kube: Kube, name: str, **spec: Any) -> None:
    kube.patch(kube.get("v1", "Node", name), {"spec": spec})


OBSTACLES = [
    ({}, "add a toleration of nvidia.com/gpu to spec.podTemplate.spec.tolerations"),
    ({"podTemplate": {"spec": {"nodeSelector": {"pool": "b"}}}}, "correct spec.podTemplate.spec.nodeSelector"),
    ({"resources": {"requests": {"memory": "1Ti"}}}, "lower spec.resources.requests.memory"),
]


def test_obstacles_name_what_makes_the_service_available(kube: Kube, namespace: str) -> None:
    change_node(kube, GPUS, taints=[TAINT])
    resources = [kube.create(demo(namespace, f"demo-{n}", gpu={}, **spec)) for n, (spec, _) in enumerate(OBSTACLES)]
    for resource, (_, says) in zip(resources, OBSTACLES, strict=True):
        message = wait_condition(kube, resource, "Ready", "False", "Unschedulable", says)["message"]
        assert "busy" not in message
    first, *others = resources
    for resource in others:
        kube.delete(resource)
    kube.patch(first, {"spec": {"podTemplate": {"spec": {"tolerations": [TOLERATION]}}}})
    wait_condition(kube, first, "Available", "True")


def test_replicas_stay_on_different_nodes_after_rollouts(kube: Kube, namespace: str) -> None:
    resource = kube.create(demo(namespace, replicas=2))
    for restart in range(3):
        kube.patch(resource, {"metadata": {"annotations": {RESTARTED_AT: str(restart)}}})
        kube.wait("the rollout", lambda restart=restart: settled(kube, namespace, str(restart)))
        assert sorted(pod["spec"]["nodeName"] for pod in live_pods(kube, namespace)) == sorted((GPUS, NO_GPUS)), restart


def live_pods(kube: Kube, namespace: str) -> list[dict[str, Any]]:
    return [pod for pod in kube.list("v1", "Pod", namespace) if "deletionTimestamp" not in pod["metadata"]]


def settled(kube: Kube, namespace: str, restarted_at: str) -> bool:
    """Returns whether two pods are left, both of this restart."""
    pods = live_pods(kube, namespace)
    return [(pod["metadata"].get("annotations") or {}).get(RESTARTED_AT) for pod in pods] == [restarted_at] * 2


def test_a_gpu_node_whose_gpus_are_taken_is_busy(kube: Kube, namespace: str) -> None:
    first = kube.create(demo(namespace, "first", gpu={}, parallelism={"tensor": 2}))
    wait_condition(kube, first, "Available", "True")
    second = kube.create(demo(namespace, "second", gpu={}))
    large = kube.create(demo(namespace, "large", gpu={}, parallelism={"tensor": 4}))
    wait_condition(kube, second, "Ready", "False", "InsufficientGPU", "they are busy now")
    wait_condition(kube, large, "Ready", "False", "InsufficientGPU", "the largest node has 2: it never fits")

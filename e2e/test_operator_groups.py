"""Tests of an engine over two pods with the real controller of LeaderWorkerSet, on simulated GPUs.

The chart of the suite does not grant LeaderWorkerSets, so the tests upgrade the release.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from e2e.cluster import Kube
from e2e.cluster.config import environment
from e2e.cluster.kube import Obj
from e2e.cluster.lws import run_lws
from e2e.cluster.node.gpus import pretend_gpus
from e2e.host import signal_container
from e2e.load import load
from e2e.release import Release
from e2e.services import POD_TIMEOUT, ask, condition, demo, get, is_ready, kubectl, patch, pods, wait_condition

ROLE = "serving.unmask.dev/role"
GROUP = {
    "gpu": {},
    "parallelism": {"tensor": 2, "nodes": 2},
    "engine": {"extraArgs": ["--device=cpu"]},
    "networkPolicy": {},
    "resources": {"limits": {"memory": "4Gi"}},
}


@pytest.fixture
def service(kube: Kube, namespace: str, release: Release) -> Iterator[Obj]:
    """Yields a Ready service of one group."""
    config = environment().kubeconfig
    assert config is not None
    with pretend_gpus(kube, 4), run_lws(kube, config):
        release.upgrade({"lws.enabled": True})
        made = kube.create(demo(namespace, spec=GROUP))
        wait_condition(kube, namespace)
        yield made
        kube.delete(made)
        kube.wait("no pods", lambda: not pods(kube, namespace), timeout=POD_TIMEOUT)


def members(kube: Kube, namespace: str, role: str) -> list[Obj]:
    """Returns the live pods with this role, that of group 0 first."""
    found = sorted(pods(kube, namespace), key=lambda pod: pod["metadata"]["name"])
    live = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return [pod for pod in live if pod["metadata"]["labels"][ROLE] == role]


def uids(kube: Kube, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(kube, namespace)}


def wait_lost_and_ready(kube: Kube, namespace: str) -> None:
    """Waits until the group has lost a member and has formed again."""
    wait_condition(kube, namespace, "Available", "False")
    wait_condition(kube, namespace)
    assert "42" in ask(kube, namespace)


@pytest.mark.usefixtures("service")
def test_a_group_serves_and_forms_again_after_the_end_of_each_pod(kube: Kube, namespace: str) -> None:
    assert "42" in ask(kube, namespace)
    (leader,), (worker,) = (members(kube, namespace, role) for role in ("leader", "worker"))
    of_service = {"labelSelector": "kubernetes.io/service-name=demo"}
    slices = kube.list("discovery.k8s.io/v1", "EndpointSlice", namespace, **of_service)
    addresses = [address for one in slices for endpoint in one["endpoints"] for address in endpoint["addresses"]]
    assert addresses == [leader["status"]["podIP"]], "requests never reach a worker"

    before = uids(kube, namespace)
    signal_container(worker, signal.SIGKILL)  # the kubelet restarts the container
    wait_lost_and_ready(kube, namespace)
    assert uids(kube, namespace) == before
    (now,) = members(kube, namespace, "leader")
    assert now["status"]["containerStatuses"][0]["restartCount"] == 0

    signal_container(leader, signal.SIGKILL)
    wait_lost_and_ready(kube, namespace)
    assert uids(kube, namespace) == before

    kubectl("delete", "pod", worker["metadata"]["name"], "--wait=false", namespace=namespace)
    wait_lost_and_ready(kube, namespace)
    kubectl("delete", "pod", leader["metadata"]["name"], "--wait=false", namespace=namespace)
    kube.wait("another leader", lambda: leader["metadata"]["uid"] not in uids(kube, namespace), timeout=POD_TIMEOUT)
    wait_condition(kube, namespace)
    assert "42" in ask(kube, namespace)


@pytest.mark.usefixtures("service")
def test_groups_are_scaled_and_replaced_without_a_failed_request(kube: Kube, namespace: str) -> None:
    kubectl("scale", "dlms", "demo", "--replicas", "2", namespace=namespace)
    kube.wait("two groups", lambda: get(kube, namespace)["status"].get("readyReplicas") == 2, timeout=POD_TIMEOUT)
    old = uids(kube, namespace)
    with load(kube, namespace) as running:
        running.wait_requests(20)
        patch(kube, namespace, {"engine": {"thresholds": {"accept": 0.8}}})
        wait_condition(kube, namespace, "RolloutComplete")
        wait_condition(kube, namespace)
        running.served(at_least=50)
    kube.wait("only new pods", lambda: not old & uids(kube, namespace), timeout=POD_TIMEOUT)
    for pod in (*members(kube, namespace, "leader"), *members(kube, namespace, "worker")):
        assert "--accept-threshold=0.8" in pod["spec"]["containers"][0]["args"]
    kubectl("scale", "dlms", "demo", "--replicas", "1", namespace=namespace)
    kube.wait("one group", lambda: len(pods(kube, namespace)) == 2, timeout=POD_TIMEOUT)
    assert all(map(is_ready, members(kube, namespace, "leader")))
    assert "42" in ask(kube, namespace)


@pytest.mark.usefixtures("service")
def test_a_group_that_cannot_start_says_which_pod_and_why(kube: Kube, namespace: str) -> None:
    patch(kube, namespace, {"image": "registry.invalid/engine:1", "drainTimeoutSeconds": 0})
    pulled = "of group 0: image registry.invalid/engine:1 cannot be pulled"
    wait_condition(kube, namespace, "ModelLoaded", "False", reason="ImagePullBackOff", says=pulled)
    patch(kube, namespace, {"image": None, "model": {"uri": "demo://", "family": "dream"}})
    failed = wait_condition(kube, namespace, "ModelLoaded", "False", reason="CrashLoopBackOff", says="of group 0")
    assert "--model-name" in failed["message"], "the last line of the engine names the flag"
    patch(kube, namespace, {"model": {"uri": "demo://", "family": None}})
    wait_condition(kube, namespace)
    assert condition(get(kube, namespace), "ModelLoaded")["status"] == "True"

"""Tests of services on nodes with too few GPUs. Their conditions have both numbers, and whether waiting can help.

The GPUs are simulated (e2e/cluster/node/gpus.py), so these engines are configured to run on the CPU.
"""

from __future__ import annotations

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.cluster.node.gpus import pretend_gpus
from e2e.pods import pod
from e2e.services import POD_TIMEOUT, ask, condition, demo, get, patch, pods, wait_condition

ON_CPU = {"gpu": {}, "engine": {"extraArgs": ["--device=cpu"]}}


def test_an_engine_of_two_ranks_gets_two_gpus(kube: Kube, namespace: str) -> None:
    """On the CPU, too, two processes run the demo model with tensor parallelism."""
    with pretend_gpus(kube, 2):
        limits = {"resources": {"limits": {"memory": "4Gi"}}}
        kube.create(demo(namespace, "shared", {**ON_CPU, **limits, "parallelism": {"tensor": 2}}))
        wait_condition(kube, namespace, "Ready", name="shared")
        (engine,) = pods(kube, namespace, "shared")
        (main,) = engine["spec"]["containers"]
        assert main["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert main["resources"]["requests"]["nvidia.com/gpu"] == "2"
        sizes = [argument for argument in main["args"] if "parallel" in argument]
        assert sizes == ["--tensor-parallel-size=2"]
        (memory,) = [one["emptyDir"] for one in engine["spec"]["volumes"] if one["name"] == "shm"]
        assert memory == {"medium": "Memory", "sizeLimit": "8Gi"}
        assert "42" in ask(kube, namespace, "shared")
        kube.delete(demo(namespace, "shared"))


def holder(namespace: str) -> Obj:
    """Returns a pod, unrelated to the operator, that occupies the only GPU."""
    made = pod(namespace, "holder")
    made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return made


def test_the_message_distinguishes_pods_that_never_fit_from_waiting_pods(kube: Kube, namespace: str) -> None:
    with pretend_gpus(kube, 1):
        kube.create(demo(namespace, "large", {"gpu": {}, "parallelism": {"data": 4}}))
        short: Obj = {"status": "False", "reason": "InsufficientGPU"}
        never = "needs 4 nvidia.com/gpu and the largest node has 1: it never fits"
        wait_condition(kube, namespace, "Ready", name="large", says=never, **short)
        kube.delete(demo(namespace, "large"))

        held = kube.create(holder(namespace))
        # The pod of an earlier test may have a GPU until it has drained.
        kube.wait("the GPU's holder", lambda: running(kube, namespace, "holder"), timeout=POD_TIMEOUT)
        kube.create(demo(namespace, "waiting", ON_CPU))
        busy = "needs 1 nvidia.com/gpu and the largest node has 1, not all free; they are busy now"
        ready = wait_condition(kube, namespace, "Ready", name="waiting", says=busy, **short)
        assert "never fits" not in ready["message"]
        kube.delete(held)
        wait_condition(kube, namespace, "Ready", name="waiting")


def running(kube: Kube, namespace: str, name: str) -> bool:
    return bool(kube.get("v1", "Pod", name, namespace)["status"].get("phase") == "Running")


def test_a_rollout_without_a_free_gpu_reports_how_to_continue(kube: Kube, namespace: str) -> None:
    with pretend_gpus(kube, 1):
        kube.create(demo(namespace, spec=ON_CPU))
        wait_condition(kube, namespace, "Ready")
        (old,) = pods(kube, namespace)

        patch(kube, namespace, {"engine": {"thresholds": {"accept": 0.8}}})
        says = "free a GPU or set maxSurge 0, maxUnavailable 1 in spec.rolloutStrategy"
        wait_condition(kube, namespace, "RolloutComplete", "False", reason="InsufficientGPU", says=says)
        wait_condition(kube, namespace, "Ready", "False", reason="InsufficientGPU", says=says)
        service = get(kube, namespace)
        assert condition(service, "Available")["status"] == "True"
        assert service["status"]["readyReplicas"] == 1
        names = {one["metadata"]["name"] for one in pods(kube, namespace)}
        assert old["metadata"]["name"] in names
        assert len(names) == 2

        patch(kube, namespace, {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}})
        wait_condition(kube, namespace, "RolloutComplete")
        wait_condition(kube, namespace, "Ready")
        (left,) = [one for one in pods(kube, namespace) if "deletionTimestamp" not in one["metadata"]]
        assert left["metadata"]["name"] != old["metadata"]["name"]
        assert "--accept-threshold=0.8" in left["spec"]["containers"][0]["args"]

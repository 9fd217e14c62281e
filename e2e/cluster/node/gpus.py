"""Simulated GPUs: the node's status reports them to the scheduler and the kubelet, but there is no hardware."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from e2e.cluster.kube import Kube, Obj

_PATH = "/status/{}/nvidia.com~1gpu"


@contextlib.contextmanager
def pretend_gpus(kube: Kube, count: int) -> Iterator[None]:
    """Sets the number of GPUs (resource nvidia.com/gpu) of one node to `count` during the block.

    Containers still run on the CPU.

    Raises:
        LookupError: No node takes any pod, or the cluster has real GPUs.
    """
    node = _free_node(kube)
    kube.patch(node, [{"op": "add", "path": _PATH.format("capacity"), "value": str(count)}], subresource="status")

    def counted() -> bool:
        now = kube.get("v1", "Node", node["metadata"]["name"])
        return bool(now["status"]["allocatable"].get("nvidia.com/gpu") == str(count))

    try:
        kube.wait(f"{count} GPUs on a node", counted)  # the kubelet copies capacity to allocatable
        yield
    finally:
        for where in ("capacity", "allocatable"):
            with_gpus = kube.get("v1", "Node", node["metadata"]["name"])["status"][where]
            if "nvidia.com/gpu" in with_gpus:
                kube.patch(node, [{"op": "remove", "path": _PATH.format(where)}], subresource="status")


def _free_node(kube: Kube) -> Obj:
    """Returns a node that takes any pod. Raises LookupError if there is none, or if a node has GPUs already."""
    nodes = kube.list("v1", "Node")
    if real := [node["metadata"]["name"] for node in nodes if "nvidia.com/gpu" in node["status"]["capacity"]]:
        raise LookupError(f"{', '.join(real)}: has GPUs already; these tests need a cluster without")
    for node in nodes:
        taints = [taint["effect"] for taint in node["spec"].get("taints", ())]
        if not node["spec"].get("unschedulable") and "NoSchedule" not in taints and "NoExecute" not in taints:
            return node
    raise LookupError("every node has a taint; these tests need one that takes any pod")

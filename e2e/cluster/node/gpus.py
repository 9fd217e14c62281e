"""GPUs that the scheduler and the kubelet count, and that nobody has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from e2e.cluster.kube import Kube

_PATH = "/status/{}/nvidia.com~1gpu"


@contextlib.contextmanager
def pretend_gpus(kube: Kube, count: int) -> Iterator[None]:
    """Every node has `count` GPUs (resource nvidia.com/gpu) while the block lasts; containers run on the CPU."""
    nodes = kube.list("v1", "Node")
    for node in nodes:
        kube.patch(node, [{"op": "add", "path": _PATH.format("capacity"), "value": str(count)}], subresource="status")

    def counted() -> bool:
        return all(
            node["status"]["allocatable"].get("nvidia.com/gpu") == str(count) for node in kube.list("v1", "Node")
        )

    try:
        kube.wait(f"{count} GPUs on every node", counted, timeout=60)  # the kubelet copies capacity to allocatable
        yield
    finally:
        for node in nodes:
            for where in ("capacity", "allocatable"):
                kube.patch(node, [{"op": "remove", "path": _PATH.format(where)}], subresource="status")

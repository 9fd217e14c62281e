"""Simulates a kubelet and an engine for tests with a real API server and its controllers."""

import secrets

from e2e.cluster import Kube
from tests.operator.live.objects import Obj
from unmask_operator.objects import SERVICE_LABEL


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

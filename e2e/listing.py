"""Lists all objects of a cluster, of every kind that the API server's discovery reports."""

from __future__ import annotations

from typing import Any

from e2e.cluster import Kube
from e2e.cluster.kube import ApiError, Obj

Key = tuple[str, str, str, str]  # apiVersion, kind, namespace, name

# Kinds that are not listed: Events and metrics change on their own, and ComponentStatus repeats other information.
_PASSING = {"Event", "PodMetrics", "NodeMetrics", "ComponentStatus"}
# Members that differ when an object is deleted and created again.
_OWN = {
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "namespace",
    "lastTransitionTime",
    "lastUpdateTime",
    "startTime",
    "clusterIP",
    "clusterIPs",
    "serving.unmask.dev/applied",  # a digest that covers the owner's uid
}


def everything(kube: Kube, namespace: str = "") -> dict[Key, Obj]:
    """Returns all objects of a namespace, or of the whole cluster including cluster-scoped objects."""
    found: dict[Key, Obj] = {}
    for version in versions(kube):
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        for resource in kube.request("GET", root)["resources"]:
            listed = "list" in resource["verbs"] and resource["kind"] not in _PASSING
            if listed and (resource["namespaced"] or not namespace):
                for obj in _list(kube, version, resource["kind"], namespace):
                    meta = obj["metadata"]
                    found[version, resource["kind"], meta.get("namespace", ""), meta["name"]] = obj
    return found


def _list(kube: Kube, version: str, kind: str, namespace: str) -> list[Obj]:
    """Returns the objects of a kind. The list is empty if the kind's definition has been deleted since discovery."""
    try:
        return kube.list(version, kind, namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        return []


def versions(kube: Kube) -> list[str]:
    """Returns the apiVersion `v1` and that of each API group in the version that the server prefers."""
    groups = kube.request("GET", "/apis")["groups"]
    return ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]


def essence(value: Any) -> Any:
    """Returns an object without the members that differ when it is deleted and created again."""
    if isinstance(value, dict):
        return {key: essence(part) for key, part in value.items() if key not in _OWN}
    return [essence(part) for part in value] if isinstance(value, list) else value

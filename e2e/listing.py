"""Everything that a cluster holds, by what the API server itself says there is."""

from __future__ import annotations

from typing import Any

from e2e.cluster import Kube
from e2e.cluster.kube import ApiError, Obj

Key = tuple[str, str, str, str]  # apiVersion, kind, namespace, name

# Not asked for: Events and pod metrics come and go by themselves, and these kinds show others a second time.
_PASSING = {"Event", "PodMetrics", "NodeMetrics", "ComponentStatus"}
# What no two lives of an object share.
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
    """All objects of a namespace, or of the whole cluster with what lies outside namespaces."""
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
    """None of a kind whose definition has gone meanwhile."""
    try:
        return kube.list(version, kind, namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        return []


def versions(kube: Kube) -> list[str]:
    """Every group in the version that its server prefers."""
    groups = kube.request("GET", "/apis")["groups"]
    return ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]


def essence(value: Any) -> Any:
    """An object without what no two lives of it share."""
    if isinstance(value, dict):
        return {key: essence(part) for key, part in value.items() if key not in _OWN}
    return [essence(part) for part in value] if isinstance(value, list) else value

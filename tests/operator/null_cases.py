"""Specs with one explicit null each, for every field, list entry and map entry of the schema, as data."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.crd import schema
from unmask_operator.api.service import SELECTOR

Path = tuple[str | int, ...]

# Valid values of members that are required in their section.
_REQUIRED: dict[str, Any] = {
    "apiKeySecretRef": {"name": "keys", "key": "key"}, "model": {"uri": "demo://"}, "uri": "demo://roman",
    "cidr": "10.0.0.0/8", "key": "key", "name": "name", "operator": "Exists", "type": "Pods", "maxReplicas": 3,
    "periodSeconds": 15, "value": 1, "parentRefs": [{"name": "name"}], "service": "other", "weight": 1,
}  # fmt: skip


# Members that a section of spec.autoscaling needs beside it.
_BESIDE: dict[str | int, Any] = {"keda": {"provider": "KEDA"}, "zero": {"minReplicas": 0}}


@dataclass(frozen=True)
class NullCase:
    """A spec with one null that is valid otherwise, and the same spec without the field or map entry."""

    path: str  # of the null
    spec: dict[str, Any]
    without: dict[str, Any]
    optional: bool  # null means absent; an entry of a list or of a label selector may not be null


def null_cases() -> Iterator[NullCase]:
    for path, optional in _paths(schema()["properties"]["spec"]):
        spec = {"model": {"uri": "hf://org/name" if path[:1] == ("modelCache",) else "demo://"}}
        at = _build(spec, path)
        without = copy.deepcopy(spec)
        _build(without, path)
        at[path[-1]] = None
        parent: Any = without
        for part in path[:-1]:
            parent = parent[part]
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        yield NullCase(".".join(map(str, path)), spec, without, optional)


def _paths(node: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, bool]]:
    for name, child in node.get("properties", {}).items():
        yield (*path, name), name not in node.get("required", ())
        yield from _paths(child, (*path, name))
    if "items" in node:
        yield (*path, 0), False
        yield from _paths(node["items"], (*path, 0))
    if "additionalProperties" in node:
        yield (*path, "entry"), path[-1] != SELECTOR


def _build(spec: dict[str, Any], path: Path) -> Any:
    """Creates the parents of a path, each with its required members, and returns the last parent."""
    node, at = schema()["properties"]["spec"], spec
    for i, part in enumerate(path[:-1]):
        node = node["items"] if part == 0 else node["properties"][part]
        made = _section(node, path[i + 1], is_last=i + 2 == len(path))
        if isinstance(at, list):
            if not at:
                at.append(made)
        elif not isinstance(at.get(part), dict | list):
            at[part] = made
        at = at[part]
    if isinstance(at, list) and not at:
        at.append(None)
    return at


def _section(node: dict[str, Any], following: str | int, is_last: bool) -> Any:
    if following == 0:
        return []
    made = {name: copy.deepcopy(_REQUIRED[name]) for name in node.get("required", ())}
    members = node.get("properties", {})
    if not is_last:
        made |= _BESIDE.get(following, {})
    if {"podSelector", "ipBlock"} <= members.keys() and (following != "ipBlock" or is_last):  # a peer needs one of them
        made["podSelector" if following == "namespaceSelector" else "namespaceSelector"] = {}
    claims = ("resourceClaimName", "resourceClaimTemplateName")
    if members.keys() >= {*claims}:  # a claim needs exactly one of them
        made[claims[following == claims[0]]] = "name"
    if "storageClassName" in members:  # a claim of a name or of a size
        made |= {"claimName": "models"} if following in ("size", "subPath") else {"size": "1Gi"}
    if "pvc" in members and (following == "fetch" or (following == "pvc" and is_last)):
        made |= {"pvc": {"claimName": "models"}}
    return made

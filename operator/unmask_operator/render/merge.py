"""The podTemplate of a resource, merged over the rendered one: maps by member, lists of objects by their key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask_operator.objects import SERVICE_LABEL, Obj
from unmask_operator.render.names import MAIN, PORT, PORT_NAME

LIST_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
APPENDED = ("tolerations",)
_HANDLERS = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


class MergeError(ValueError):
    """A podTemplate that cannot be merged; the sentence names the field and the fix."""


def merge_template(base: Obj, patch: Mapping[str, Any]) -> Obj:
    """The pod template `base` with the resource's podTemplate merged over it; neither is changed.

    Maps merge member by member and ``null`` deletes a member. Entries of containers, initContainers, volumes, env,
    imagePullSecrets (by name), volumeMounts (by mountPath) and ports (by containerPort) merge with the entry of the
    same key, new ones follow; an entry that ``null`` leaves with its key alone goes. Where an entry or a probe can be
    of one kind only, the given kind replaces the rendered one. Tolerations are added. Other lists are replaced.

    Raises:
        MergeError: an entry without its key, a member of the wrong type, or one of the reserved things: the selector's
            label, and main's command, args and port.
    """
    for member in patch:
        if member not in ("metadata", "spec"):
            raise MergeError(f"podTemplate.{member}: a pod template has metadata and spec only; remove it")
    for member in _map(patch.get("metadata"), "podTemplate.metadata"):
        if member not in ("labels", "annotations"):
            raise MergeError(f"podTemplate.metadata.{member}: only labels and annotations reach the pods; remove it")
    _refuse_reserved(patch)
    return _merge_maps(base, patch, "podTemplate")


def _refuse_reserved(patch: Mapping[str, Any]) -> None:
    labels = _map(_map(patch.get("metadata"), "podTemplate.metadata").get("labels", {}), "podTemplate.metadata.labels")
    if SERVICE_LABEL in labels:
        raise MergeError(f"podTemplate.metadata.labels: {SERVICE_LABEL} selects the engine's pods; remove it")
    for path in (("metadata",), ("metadata", "labels"), ("spec",), ("spec", "containers")):
        if _nulled(patch, path):
            raise MergeError(f"podTemplate.{'.'.join(path)}: the engine needs it, so null cannot delete it; remove it")
    containers = _map(patch.get("spec"), "podTemplate.spec").get("containers") or []
    where = f"podTemplate.spec.containers[{MAIN}]"
    for main in (c for c in _list(containers, "podTemplate.spec.containers") if _named(c, MAIN)):
        if "image" in main:
            raise MergeError(f"{where}.image: set spec.image instead, which the status and upgrades follow")
        for member, fix in (("command", "set spec.engine"), ("args", "set spec.engine or spec.engine.extraArgs")):
            if member in main:
                raise MergeError(f"{where}.{member}: the operator writes the engine's {member}; {fix} instead")
        if "ports" in main and main["ports"] is None:
            raise MergeError(f"{where}.ports: probes and the Service need the engine's port; remove the null")
        for port in _list(main.get("ports", []), f"{where}.ports"):
            if isinstance(port, Mapping) and (port.get("containerPort") == PORT or port.get("name") == PORT_NAME):
                raise MergeError(f"{where}.ports: port {PORT}, named {PORT_NAME}, is the engine's; take another one")


def _nulled(patch: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    value: Any = patch
    for member in path:
        if not isinstance(value, Mapping) or member not in value:
            return False
        value = value[member]
    return value is None


def _merge_maps(base: Mapping[str, Any], patch: Mapping[str, Any], where: str) -> Obj:
    merged = dict(base)
    for member, value in patch.items():
        path = f"{where}.{member}"
        if value is None:
            merged.pop(member, None)
        else:
            merged[member] = _merge_member(member, merged.get(member), value, path)
    return merged


def _merge_member(member: str, base: Any, value: Any, path: str) -> Any:
    if member in LIST_KEYS:
        return _merge_entries(member, _list(base or [], path), _list(value, path), path)
    if member in APPENDED:
        present = _list(base or [], path)
        return [*present, *(entry for entry in _clean(_list(value, path)) if entry not in present)]
    if isinstance(value, Mapping):
        old = base if isinstance(base, Mapping) else {}
        if member in _PROBES and value.keys() & _HANDLERS:
            old = {k: v for k, v in old.items() if k in value or k not in _HANDLERS}
        return _merge_maps(old, value, path)
    if isinstance(base, Mapping | list) and not isinstance(value, list):
        raise MergeError(f"{path}: {value!r} cannot replace {'a list' if isinstance(base, list) else 'a map'}")
    return _clean(value)


def _merge_entries(member: str, base: list[Any], patch: list[Any], where: str) -> list[Any]:
    key = LIST_KEYS[member]
    merged = {entry[key]: entry for entry in base}  # keeps the order of the first appearance
    for index, entry in enumerate(patch):
        if not isinstance(entry, Mapping) or not isinstance(entry.get(key), str | int):
            raise MergeError(f"{where}[{index}]: has no {key}; give it one, entries merge by it")
        path = f"{where}[{entry[key]}]"
        old = merged.get(entry[key], {})
        if member in ("volumes", "env") and entry.keys() - {key}:  # of one kind only: the given kind is the one
            old = {k: v for k, v in old.items() if k in entry}
            if member == "env":
                old = {key: entry[key]}
        new = _merge_maps(old, entry, path)
        if None in entry.values() and new.keys() == {key}:
            merged.pop(entry[key], None)
        else:
            merged[entry[key]] = new
    return list(merged.values())


def _clean(value: Any) -> Any:
    """A copy without the members that are null."""
    if isinstance(value, Mapping):
        return {k: _clean(v) for k, v in value.items() if v is not None}
    return [_clean(v) for v in value] if isinstance(value, list) else value


def _named(entry: Any, name: str) -> bool:
    return isinstance(entry, Mapping) and entry.get("name") == name


def _map(value: Any, path: str) -> Mapping[str, Any]:
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise MergeError(f"{path}: must be a map, not {value!r}")


def _list(value: Any, path: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise MergeError(f"{path}: must be a list, not {value!r}")

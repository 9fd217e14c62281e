"""Merges the podTemplate of a resource into the rendered pod template: maps by member, lists of objects by key."""

from collections.abc import Mapping
from typing import Any

from unmask_operator.api.service import SpecError
from unmask_operator.objects import SERVICE_LABEL, Obj
from unmask_operator.render.labels import MAIN, PORT, PORT_NAME

ROOT = "spec.podTemplate"
LIST_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
}
SecondKey = tuple[str, str]  # second member of a key, and its default
SECOND_KEYS: Mapping[str, SecondKey] = {"ports": ("protocol", "TCP")}
APPENDED = ("tolerations",)
_HANDLERS = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_NEEDED = {f"{ROOT}.metadata.labels", f"{ROOT}.spec.containers", f"{ROOT}.spec.containers[{MAIN}].ports"}


def merge_template(base: Obj, patch: Mapping[str, Any]) -> Obj:
    """Returns the rendered template `base` merged with the podTemplate `patch`. Neither is modified.

    * Maps merge by member; ``null`` deletes a member.
    * Entries of containers, initContainers, volumes, env, imagePullSecrets (by name), volumeMounts (by mountPath),
      ports (by containerPort and protocol) and hostAliases (by ip) merge by key. New entries are appended. An entry is
      removed if ``null`` leaves only its key.
    * The source of a variable or volume and the handler of a probe replace the rendered ones.
    * Tolerations are appended. Other lists are replaced.

    Raises:
        SpecError: an entry lacks its key or repeats one, a member has the wrong type, or `patch` sets a reserved one.
            Reserved are the selector's label, and command, args, image and port of the container main.
    """
    metadata, spec = patch.get("metadata", {}), patch.get("spec", {})
    _refuse_reserved_metadata(metadata, f"{ROOT}.metadata")
    merged = _merge_maps(base, {"metadata": metadata, "spec": spec}, ROOT)
    for entry in spec.get("containers", ()):
        if entry["name"] == MAIN:
            _refuse_reserved_main(entry, f"{ROOT}.spec.containers[{MAIN}]")
    return merged


def _refuse_reserved_metadata(metadata: Mapping[str, Any], where: str) -> None:
    for member, value in metadata.items():
        # Generators of manifests write creationTimestamp: null.
        if value is not None and member not in ("labels", "annotations"):
            raise SpecError(f"{where}.{member}", "only labels and annotations can be set; remove it")
        if member == "labels" and isinstance(value, Mapping) and SERVICE_LABEL in value:
            raise SpecError(f"{where}.labels", f"{SERVICE_LABEL} selects the engine's pods; remove it")


def _refuse_reserved_main(main: Mapping[str, Any], where: str) -> None:
    for member, field in (("command", "image"), ("args", "engine"), ("image", "image")):
        if member in main:
            raise SpecError(f"{where}.{member}", f"is set by the operator; remove it and use spec.{field}")
    if any(port["containerPort"] == PORT or port.get("name") == PORT_NAME for port in main.get("ports", ())):
        sentence = f"port {PORT}, named {PORT_NAME}, is reserved for the engine; use another port"
        raise SpecError(f"{where}.ports", sentence)


def _merge_maps(base: Mapping[str, Any], patch: Mapping[str, Any], where: str) -> Obj:
    merged = dict(base)
    for member, value in patch.items():
        path = f"{where}.{member}"
        if value is not None:
            merged[member] = _merge_member(member, merged.get(member), value, path)
        elif path in _NEEDED:
            raise SpecError(path, "the engine requires it; remove the null")
        else:
            merged.pop(member, None)
    return merged


def _merge_member(member: str, base: Any, value: Any, path: str) -> Any:
    if member in LIST_KEYS or member in APPENDED or isinstance(base, list):
        if not isinstance(value, list):
            raise SpecError(path, f"{value!r} must be a list")
        present = base if isinstance(base, list) else []
        if member in LIST_KEYS:
            return _merge_entries(member, present, value, path)
        added = [entry for entry in _clean(value) if entry not in present]
        return [*present, *added] if member in APPENDED else _clean(value)
    if isinstance(value, Mapping):
        rendered = base if isinstance(base, Mapping) else {}
        if member in _PROBES and value.keys() & _HANDLERS:
            rendered = {k: v for k, v in rendered.items() if k in value or k not in _HANDLERS}
        return _merge_maps(rendered, value, path)
    if isinstance(base, Mapping):
        raise SpecError(path, f"{value!r} must be a map")
    return _clean(value)


def _merge_entries(member: str, base: list[Any], patch: list[Any], where: str) -> list[Any]:
    key, second = LIST_KEYS[member], SECOND_KEYS.get(member)
    # Keeps the order of the first appearance.
    merged: dict[tuple[str, ...], Obj] = {identity(entry, key, second): entry for entry in base}
    for index, entry in enumerate(patch):
        if not isinstance(entry, Mapping) or not isinstance(name := entry.get(key), str | int):
            raise SpecError(f"{where}[{index}]", f"has no {key}, by which entries merge; add one")
        complete = identity(entry, key, second)
        if any(identity(other, key, second) == complete for other in patch[:index]):
            raise SpecError(f"{where}[{index}]", f"is the second entry with {key} {' '.join(complete)}; combine them")
        old = merged.get(complete, {})
        if entry.keys() != {key}:  # a variable or volume has one source, that of the patch
            if member == "env":
                old = {}
            elif member == "volumes":
                old = {k: v for k, v in old.items() if k in entry}
        new = _merge_maps(old, entry, f"{where}[{name}]")
        if new.keys() == {key} and None in entry.values():
            merged.pop(complete, None)
        else:
            merged[complete] = new
    return list(merged.values())


def identity(entry: Mapping[str, Any], key: str, second: SecondKey | None) -> tuple[str, ...]:
    """Returns the complete key of a list's entry."""
    first = str(entry[key])
    return (first,) if second is None else (first, str(entry.get(second[0]) or second[1]))


def _clean(value: Any) -> Any:
    """Copies a value without members that are null."""
    if isinstance(value, Mapping):
        return {k: _clean(v) for k, v in value.items() if v is not None}
    return [_clean(v) for v in value] if isinstance(value, list) else value

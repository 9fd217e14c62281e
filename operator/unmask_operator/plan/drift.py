"""Drift detection: compares live objects with desired ones."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, NamedTuple

from unmask_operator.objects import Obj, quantity
from unmask_operator.render import merge


class ListKey(NamedTuple):
    """Identifies an entry of an associative list (`x-kubernetes-list-type: map`): its key member and the key."""

    member: str
    value: Any


FieldPath = tuple[str | ListKey, ...]

# Keys of associative lists, which the API server may reorder and extend.
LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    **{member: (key,) for member, key in merge.LIST_KEYS.items()},
    "ports": ("containerPort", "port"),  # of a container, of a Service
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "volumeDevices": ("devicePath",),
}
# Second member of such a key, and its default. Next to an entry with another value, server-side apply adds an entry.
_SECOND_KEYS = {**merge.SECOND_KEYS, "topologySpreadConstraints": ("whenUnsatisfiable", "DoNotSchedule")}
_QUANTITIES = {"sizeLimit", "averageValue", "divisor"}  # members that hold a quantity
_QUANTITY_MAPS = {"limits", "requests"}  # members that map names to quantities
_LARGEST_QUANTITY = Decimal(2**63 - 1)
# Kubernetes rounds quantities up when it parses them, and those of resources again when it sets defaults.
_PRECISIONS = (Decimal("1e-9"), Decimal("1e-3"))
# Compared exactly: another entry in a Service's selector selects no pod, another selector in a peer admits other pods.
_EXACT = {"selector", "podSelector", "namespaceSelector", "from"}
_FALSE_BY_WORD = {"automountServiceAccountToken", "enableServiceLinks", "allowPrivilegeEscalation", "hostUsers"}
_ZERO_BY_DEFAULT = {"initialDelaySeconds", "minReadySeconds", "hostPort"}
# Maps that the API server omits if they are empty. An empty struct, such as emptyDir, has a meaning.
_NO_EMPTY_MAPS = {
    *("annotations", "labels", "matchLabels", "data", "binaryData"),
    *("nodeSelector", "limits", "requests", "overhead", "volumeAttributes", "options"),
}
# Members of selectors that the API server omits if they are empty.
_NO_EMPTY_REQUIREMENTS = {"matchLabels", "matchExpressions", "values"}
# Members of pods for which the API server replaces "" or 0 by a default.
_DEFAULTED = {
    *("schedulerName", "dnsPolicy", "restartPolicy", "imagePullPolicy", "protocol", "scheme", "path"),
    *("terminationMessagePath", "terminationMessagePolicy"),
    *("periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold"),
    *("apiVersion", "fsType", "iscsiInterface", "keyring", "pool", "storageMode", "user"),  # of volumes and fieldRef
}


def differs(desired: Any, live: Any) -> bool:
    """Returns whether `live` lacks a member, a list entry or a value of `desired`.

    Additions to `live` are no difference: defaults of the API server and fields of other managers. Equal quantities
    ("1000m" and 1) are no difference either. An empty value ("", [], some false and 0 values) may be absent or replaced
    by a default. Selectors and peers must be equal, because an addition changes their meaning.
    """
    return next(differences(desired, live), None) is not None


def differences(
    desired: Any, live: Any, path: FieldPath = (), member: str = "", quantities: bool = False
) -> Iterator[FieldPath]:
    """Yields the paths of all differences, as defined by `differs`.

    Args:
        desired: the value to write.
        live: the value of the API server.
        path: path of both values.
        member: name of the member with these values.
        quantities: whether the values are quantities or maps of quantities.
    """
    if desired == live:  # fast path
        return
    if member in _DEFAULTED and desired in ("", 0):
        return
    if member in _EXACT:
        if _without_empty_requirements(desired) != _without_empty_requirements(live):
            yield path
    elif isinstance(desired, dict) and isinstance(live, dict):
        within, has_free_names = member in _QUANTITY_MAPS, member in _NO_EMPTY_MAPS
        for name, value in desired.items():
            if live.get(name) is not None:
                inner = "" if has_free_names else name  # a label "path" is not the path of a probe
                yield from differences(value, live[name], (*path, name), inner, within or name in _QUANTITIES)
            elif not _same_as_nothing(name, value):
                yield (*path, name)
    elif isinstance(desired, list) and isinstance(live, list):
        yield from _list_differences(member, desired, live, path)
    elif not (quantities and _is_stored_as(desired, live)):
        yield path


def _list_differences(member: str, desired: Sequence[Any], live: Sequence[Any], path: FieldPath) -> Iterator[FieldPath]:
    for key in LIST_KEYS.get(member, ()):
        second = _SECOND_KEYS.get(member)
        if not (_is_map(desired, key, second) and _is_map(live, key, second)):
            continue
        found = {merge.identity(entry, key, second): entry for entry in live}
        same_key = {entry[key]: entry for entry in live}
        for entry in desired:
            position = (*path, ListKey(key, entry[key]))
            # Others may add an entry with another second member next to the desired one, or replace the desired one.
            other = found.get(merge.identity(entry, key, second)) or same_key.get(entry[key])
            if other is None:
                yield position
            else:
                yield from differences(entry, other, position)
        return
    if member == "ipFamilies":
        live = live[: len(desired)]  # the API server adds the secondary family of a dual-stack Service
    if len(desired) != len(live) or any(differs(d, h) for d, h in zip(desired, live, strict=True)):
        yield path


def _without_empty_requirements(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            member: _without_empty_requirements(inner)
            for member, inner in value.items()
            if inner or member not in _NO_EMPTY_REQUIREMENTS
        }
    return [_without_empty_requirements(entry) for entry in value] if isinstance(value, list) else value


def with_secondary_family(desired: Obj, live: Obj) -> Obj:
    """Returns the dual-stack Service with the IP family that the API server added. It rejects a write without it."""
    spec, live_spec = desired.get("spec") or {}, live.get("spec") or {}
    requested, found = spec.get("ipFamilies"), live_spec.get("ipFamilies") or []
    is_dual = (spec.get("ipFamilyPolicy") or live_spec.get("ipFamilyPolicy")) in ("PreferDualStack", "RequireDualStack")
    if not (requested and is_dual and found[: len(requested)] == requested):
        return desired
    return {**desired, "spec": {**spec, "ipFamilies": found}}


class Clash(NamedTuple):
    """A live value that server-side apply cannot repair: its JSON pointer and the desired value."""

    pointer: str
    live: Any
    desired: Any


def clashes(desired: Obj, live: Obj) -> Iterator[Clash]:
    """Yields the values in which another client set an alternative that excludes a desired member.

    Server-side apply retains fields of other managers. For example, it would combine an httpGet with an exec, an
    emptyDir with a hostPath, or two ports of one name, and the API server rejects such an object.
    """
    parents = dict.fromkeys(_exclusive_parent(path, desired["kind"]) for path in differences(desired, live))
    for parent in filter(None, parents):
        pointer, own, found = "", desired, live
        for part in parent:
            own, _ = _inner(own, part)
            found, position = _inner(found, part)
            pointer = f"{pointer}/{position}"
        if isinstance(own, list) or any(member not in found for member in own):
            yield Clash(pointer, found, own)


def _exclusive_parent(path: FieldPath, kind: str) -> FieldPath | None:
    """Returns the object or list above `path` whose members may exclude each other, or None."""
    parent = path[:-1]
    match parent[-2:], path[-1]:
        case (_, "ports"), ListKey():
            return parent
        case ("ports", ListKey()), "protocol":  # a part of the entry's key
            return parent[:-1]
        case (("env" | "volumes"), ListKey()), str():
            return parent
        case (_, ("startupProbe" | "readinessProbe" | "livenessProbe" | "preStop" | "postStart")), str():
            return parent
    return parent if kind == "PodDisruptionBudget" and parent == ("spec",) else None


def _inner(value: Any, part: str | ListKey) -> tuple[Any, str | int]:
    """Returns a part of a value and its member name or list index."""
    if isinstance(part, str):
        return value[part], part
    index = next(i for i, entry in enumerate(value) if entry[part.member] == part.value)
    return value[index], index


def field_name(path: FieldPath) -> str:
    """Formats a path, such as spec.template.spec.containers[main].image."""
    text = ""
    for part in path:
        match part:
            case ListKey(value=value):
                text += f"[{value}]"
            case str(name) if "." in name or "/" in name:
                text += f"[{name}]"
            case str(name):
                text += f".{name}" if text else name
    return text


def _is_map(entries: Sequence[Any], key: str, second: merge.SecondKey | None) -> bool:
    """Returns whether each entry has a unique key."""
    if not all(isinstance(entry, dict) and isinstance(entry.get(key), str | int) for entry in entries):
        return False
    return len({merge.identity(entry, key, second) for entry in entries}) == len(entries)


def _same_as_nothing(member: str, value: Any) -> bool:
    """Returns whether the API server may omit a member with this value."""
    if value is False:
        return member not in _FALSE_BY_WORD  # an absent value means true or unset
    if value == {}:
        return member in _NO_EMPTY_MAPS
    return value is None or value == "" or value == [] or (value == 0 and member in _ZERO_BY_DEFAULT)


def _is_stored_as(desired: Any, live: Any) -> bool:
    """Returns whether the API server may store the quantity `desired` as `live`, exactly or rounded up."""
    number, stored = quantity(desired), quantity(live)
    if number is None or stored is None:
        return False
    bounded = max(-_LARGEST_QUANTITY, min(number, _LARGEST_QUANTITY))
    return stored == number or stored in (bounded.quantize(unit, ROUND_CEILING) for unit in _PRECISIONS)

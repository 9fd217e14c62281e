"""Drift: does a live object still say everything that we want of it?"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from unmask_operator.objects import Obj
from unmask_operator.render import merge


class ListKey(NamedTuple):
    """The entry of a list that is a map: the member that is its key, and the key."""

    member: str
    value: Any


FieldPath = tuple[str | ListKey, ...]

# Members whose lists are maps to the API server: it may order and extend them.
LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    **{member: (key,) for member, key in merge.LIST_KEYS.items()},
    "ports": ("containerPort", "port"),  # of a container, of a Service
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey",),
    "hostAliases": ("ip",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "volumeDevices": ("devicePath",),
}
_SUFFIXES = {
    **{s: Decimal(1024) ** i for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{s: Decimal(1000) ** i for i, s in zip((-3, -2, -1, 1, 2, 3, 4, 5, 6), "numkMGTPE", strict=True)},
}
_QUANTITIES = {"sizeLimit", "averageValue", "divisor"}  # members that hold a quantity
_QUANTITY_MAPS = {"limits", "requests"}  # members that map names to quantities
# Whole or wrong: one entry more in a Service's selector selects nothing, one selector more in a peer lets others in.
_EXACT = {"selector", "podSelector", "namespaceSelector", "from"}
_FALSE_BY_WORD = {"automountServiceAccountToken", "enableServiceLinks", "allowPrivilegeEscalation", "hostUsers"}
_ZERO_BY_DEFAULT = {"initialDelaySeconds", "minReadySeconds", "hostPort"}
# Maps that the API server leaves out if they are empty. An empty struct, such as emptyDir, is something.
_NO_EMPTY_MAPS = {
    *("annotations", "labels", "matchLabels", "data", "binaryData"),
    *("nodeSelector", "limits", "requests", "overhead", "volumeAttributes", "options"),
}
# Members of pods that the API server sets to a default if they are "" or 0.
_DEFAULTED = {
    *("schedulerName", "dnsPolicy", "restartPolicy", "imagePullPolicy", "protocol", "scheme", "path"),
    *("terminationMessagePath", "terminationMessagePolicy"),
    *("periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold"),
}


def differs(desired: Any, live: Any) -> bool:
    """Whether `live` lacks something of `desired`: a member, a list's entry or a value.

    What others added to `live` (defaults of the API server, fields of other managers) is no difference, nor is another
    spelling of a quantity ("1000m" and 1). A value that is the same as nothing ("", [], and certain falses and zeros)
    may be absent, or a default in its place. Only selectors and peers must be equal: there an addition changes the
    meaning, and the API server adds nothing.
    """
    return next(differences(desired, live), None) is not None


def differences(
    desired: Any, live: Any, path: FieldPath = (), member: str = "", quantities: bool = False
) -> Iterator[FieldPath]:
    """The paths of all fields in which `live` lacks something of `desired`, as `differs` defines it.

    Args:
        desired: a value that was, or is to be, written.
        live: the value that the API server has.
        path: path of both values.
        member: name of the member that has them.
        quantities: whether they are quantities, or maps of such.
    """
    if desired == live:  # most parts are, and this is quick
        return
    if member in _DEFAULTED and desired in ("", 0):
        return
    if member in _EXACT:
        yield path
    elif isinstance(desired, dict) and isinstance(live, dict):
        within = member in _QUANTITY_MAPS
        for name, value in desired.items():
            if live.get(name) is not None:
                yield from differences(value, live[name], (*path, name), name, within or name in _QUANTITIES)
            elif not _same_as_nothing(name, value):
                yield (*path, name)
    elif isinstance(desired, list) and isinstance(live, list):
        yield from _list_differences(member, desired, live, path)
    elif not (quantities and (number := quantity(desired)) is not None and number == quantity(live)):
        yield path


def _list_differences(member: str, desired: Sequence[Any], live: Sequence[Any], path: FieldPath) -> Iterator[FieldPath]:
    for key in LIST_KEYS.get(member, ()):
        if _is_map(desired, key) and _is_map(live, key):
            by_key = {entry[key]: entry for entry in live}
            for entry in desired:
                position = (*path, ListKey(key, entry[key]))
                if entry[key] in by_key:
                    yield from differences(entry, by_key[entry[key]], position)
                else:
                    yield position
            return
    if len(desired) != len(live) or any(differs(d, h) for d, h in zip(desired, live, strict=True)):
        yield path


class Clash(NamedTuple):
    """A value that server-side apply cannot repair: JSON pointer, live and desired value."""

    pointer: str
    live: Any
    desired: Any


def clashes(desired: Obj, live: Obj) -> Iterator[Clash]:
    """The values in which another client's alternative excludes a desired member.

    Server-side apply keeps the fields of other managers: it adds a second port of the same name, an httpGet to an exec,
    an emptyDir to a hostPath. The API server refuses both together.
    """
    parents = dict.fromkeys(path[:-1] for path in differences(desired, live) if _is_alternative(path, desired["kind"]))
    for parent in parents:
        pointer, own, found = "", desired, live
        for part in parent:
            own, _ = _inner(own, part)
            found, position = _inner(found, part)
            pointer = f"{pointer}/{position}"
        if isinstance(own, list) or any(member not in found for member in own):
            yield Clash(pointer, found, own)


def _is_alternative(path: FieldPath, kind: str) -> bool:
    parent = path[:-1]
    match parent[-2:], path[-1]:
        case (_, "ports"), ListKey():
            return True
        case (("env" | "volumes"), ListKey()), str():
            return True
        case (_, ("startupProbe" | "readinessProbe" | "livenessProbe" | "preStop" | "postStart")), str():
            return True
    return kind == "PodDisruptionBudget" and parent == ("spec",)


def _inner(value: Any, part: str | ListKey) -> tuple[Any, str | int]:
    """Returns a part of a value, and its member or index."""
    if isinstance(part, str):
        return value[part], part
    index = next(i for i, entry in enumerate(value) if entry[part.member] == part.value)
    return value[index], index


def field_name(path: FieldPath) -> str:
    """Returns the path as text: spec.template.spec.containers[main].image."""
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


def _is_map(entries: Sequence[Any], key: str) -> bool:
    """Returns whether each entry has a distinct `key`."""
    keys = [entry[key] for entry in entries if isinstance(entry, dict) and key in entry]
    return len(keys) == len(entries) == len(set(keys))


def _same_as_nothing(member: str, value: Any) -> bool:
    """Returns whether the API server removes the member if it has this value."""
    if value is False:
        return member not in _FALSE_BY_WORD  # these are true, or as good as, where they are missing
    if value == {}:
        return member in _NO_EMPTY_MAPS
    return value is None or value == "" or value == [] or (value == 0 and member in _ZERO_BY_DEFAULT)


def quantity(value: Any) -> Decimal | None:
    """Returns the value of a Kubernetes quantity ("500m", "2Gi", 4, "1e3"), or None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text, factor = str(value), Decimal(1)
    for suffix, scale in _SUFFIXES.items():
        if text.endswith(suffix):
            text, factor = text.removesuffix(suffix), scale
            break
    try:
        number = Decimal(text) * factor
    except ArithmeticError:  # no number, or an exponent that Decimal cannot hold
        return None
    return number if number.is_finite() else None

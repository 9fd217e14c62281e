"""Compares planned children with live objects, as plain data.

The API server stores some values in another form: it replaces empty values by defaults, and rounds quantities. Such a
value looks like drift here. The answer to a dry run of the child tells whether a write would change the object.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from unmask_operator.objects import GROUP, Obj, digest, quantity
from unmask_operator.render import merge


class ListKey(NamedTuple):
    """Identifies an entry of an associative list (`x-kubernetes-list-type: map`): its key member and the key."""

    member: str
    value: Any


FieldPath = tuple[str | ListKey, ...]
Same = Callable[[Any, Any], bool]  # whether two scalars, desired and live, are one value

APPLIED = f"{GROUP}/applied"  # annotation of a child: digest of the last written form
# Immutable kinds. They are written without a dry run, because no field of the spec can make them invalid. They have no
# digest, which would cause another write: the API server refuses the same content in another encoding.
WRITTEN_ONCE = ("ControllerRevision",)

# Keys of associative lists, which the API server may reorder and others may extend. Others are compared as a whole.
LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    **{member: (key,) for member, key in merge.LIST_KEYS.items()},
    "ports": ("containerPort", "port"),  # of a container, of a Service
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey",),
}
# Compared exactly: another entry in a Service's selector selects no pod, another selector in a peer admits other pods.
_EXACT = {"selector", "podSelector", "namespaceSelector", "from"}
_BOOKKEEPING = ("resourceVersion", "generation", "managedFields")


def written_form(child: Obj) -> Obj:
    """Returns the child as it is sent: with an annotation that has its digest.

    The digest reveals a field that was removed from the plan, which the live object still has.
    """
    if child["kind"] in WRITTEN_ONCE:
        return child
    meta = child["metadata"]
    return {**child, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), APPLIED: digest(child)}}}


def applied_digest(obj: Obj) -> str | None:
    """Returns the digest in the annotation of a child or a live object."""
    found = (obj["metadata"].get("annotations") or {}).get(APPLIED)
    return None if found is None else str(found)


def content(obj: Obj) -> Obj:
    """Returns an object without its status and the API server's bookkeeping."""
    meta = {member: value for member, value in obj["metadata"].items() if member not in _BOOKKEEPING}
    return {**{member: value for member, value in obj.items() if member != "status"}, "metadata": meta}


def _is_number_as_text(desired: Any, live: Any) -> bool:
    return isinstance(desired, int | float) and str(desired) == live  # a quantity


def differs(desired: Any, live: Any) -> bool:
    """Returns whether there are `differences`."""
    return next(differences(desired, live), None) is not None


def differences(desired: Any, live: Any, path: FieldPath = (), same: Same = _is_number_as_text) -> Iterator[FieldPath]:
    """Yields the paths of the members, entries and values of `desired` that `live` lacks.

    Additions to `live` are no difference: defaults of the API server and fields of other managers. Selectors and peers
    must be equal, because an addition changes their meaning.
    """
    if desired == live:  # fast path
        return
    if path and path[-1] in _EXACT:
        yield path
    elif isinstance(desired, dict) and isinstance(live, dict):
        for name, value in desired.items():
            if live.get(name) is not None:
                yield from differences(value, live[name], (*path, name), same)
            elif value is not None:
                yield (*path, name)
    elif isinstance(desired, list) and isinstance(live, list):
        yield from _list_differences(desired, live, path, same)
    elif not same(desired, live):
        yield path


def _list_differences(desired: Sequence[Any], live: Sequence[Any], path: FieldPath, same: Same) -> Iterator[FieldPath]:
    for key in LIST_KEYS.get(str(path[-1]) if path else "", ()):
        if not (_is_map(desired, key) and _is_map(live, key)):
            continue
        found = {entry[key]: entry for entry in live}
        for entry in desired:
            position = (*path, ListKey(key, entry[key]))
            if entry[key] in found:
                yield from differences(entry, found[entry[key]], position, same)
            else:
                yield position
        return
    pairs = zip(desired, live, strict=False)
    if len(desired) != len(live) or any(True for one, other in pairs for _ in differences(one, other, (), same)):
        yield path


def replaced(desired: Obj, stored: Obj) -> list[FieldPath]:
    """Returns the paths of the values that admission replaced or removed, in an object that a dry run left as it is.

    Forms in which the API server stores a value are not among them: no empty values, and quantities.
    """
    return list(differences(_without_empty(desired), _without_empty(stored), same=_is_same_quantity))


def _is_same_quantity(desired: Any, live: Any) -> bool:
    return quantity(desired) is not None and quantity(desired) == quantity(live)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {member: inner for member, given in value.items() if (inner := _without_empty(given))}
    return [_without_empty(entry) for entry in value] if isinstance(value, list) else value


def with_secondary_family(desired: Obj, live: Obj) -> Obj:
    """Returns the dual-stack Service with the IP family that the API server added. It rejects a write without it."""
    spec, live_spec = desired.get("spec") or {}, live.get("spec") or {}
    requested, found = spec.get("ipFamilies"), live_spec.get("ipFamilies") or []
    is_dual = (spec.get("ipFamilyPolicy") or live_spec.get("ipFamilyPolicy")) in ("PreferDualStack", "RequireDualStack")
    if not (requested and is_dual and found[: len(requested)] == requested):
        return desired
    return {**desired, "spec": {**spec, "ipFamilies": found}}


def field_name(path: FieldPath) -> str:
    """Formats a path, such as spec.template.spec.containers[main].image."""

    def text(part: str | ListKey) -> str:
        if isinstance(part, ListKey):
            return f"[{part.value}]"
        return f"[{part}]" if "." in part or "/" in part else f".{part}"

    return "".join(map(text, path)).removeprefix(".")


def _is_map(entries: Sequence[Any], key: str) -> bool:
    """Returns whether each entry has a unique key."""
    if not all(isinstance(entry, dict) and isinstance(entry.get(key), str | int) for entry in entries):
        return False
    return len({entry[key] for entry in entries}) == len(entries)

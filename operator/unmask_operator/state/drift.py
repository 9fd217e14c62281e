"""Drift: does a live object still say everything that we want of it?"""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from unmask_operator.render import merge

# Members whose lists are maps to the API server: it may order and extend them.
LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    **{member: (key,) for member, key in merge.LIST_KEYS.items()},
    "ports": ("containerPort", "port"),  # of a container, of a Service
    "ownerReferences": ("uid",),
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
_ZERO_BY_DEFAULT = {"initialDelaySeconds", "minReadySeconds"}


def differs(wanted: Any, live: Any, member: str = "", quantities: bool = False) -> bool:
    """Whether `live` lacks something of `wanted`: a member, a list's entry or a value.

    What others added to `live` (defaults of the API server, fields of other managers) is no difference, nor is another
    spelling of a quantity ("1000m" and 1), nor the absence of a value that the API server leaves out because it is the
    same as nothing ("" , [] and such falses and zeros). Selectors and peers alone must be as they are wanted: there an
    addition changes the meaning, and the API server adds nothing. `member`: the one that both are the value of.
    """
    if wanted == live:  # most parts are, and this is quick
        return False
    if member in _EXACT:
        return True
    if isinstance(wanted, dict):
        if not isinstance(live, dict):
            return True
        within = member in _QUANTITY_MAPS
        return any(
            not _same_as_nothing(k, v) if live.get(k) is None else differs(v, live[k], k, within or k in _QUANTITIES)
            for k, v in wanted.items()
        )
    if isinstance(wanted, list):
        return not isinstance(live, list) or _lists_differ(member, wanted, live)
    if quantities and (number := quantity(wanted)) is not None:
        return number != quantity(live)
    return True


def _lists_differ(member: str, wanted: Sequence[Any], live: Sequence[Any]) -> bool:
    for key in LIST_KEYS.get(member, ()):
        if _is_map(wanted, key) and _is_map(live, key):
            by_key = {entry[key]: entry for entry in live}
            return any(entry[key] not in by_key or differs(entry, by_key[entry[key]]) for entry in wanted)
    return len(wanted) != len(live) or any(differs(w, h) for w, h in zip(wanted, live, strict=True))


def _is_map(entries: Sequence[Any], key: str) -> bool:
    """Whether each entry has a `key` of its own."""
    keys = [entry[key] for entry in entries if isinstance(entry, dict) and key in entry]
    return len(keys) == len(entries) == len(set(keys))


def _same_as_nothing(member: str, value: Any) -> bool:
    """Whether the API server, given this value, leaves the member out."""
    if value is False:
        return member not in _FALSE_BY_WORD  # these are true, or as good as, where they are missing
    return value is None or value == "" or value == [] or (value == 0 and member in _ZERO_BY_DEFAULT)


def quantity(value: Any) -> Decimal | None:
    """The number that a Kubernetes quantity stands for ("500m", "2Gi", 4, "1e3"), None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text, factor = str(value), Decimal(1)
    for suffix, scale in _SUFFIXES.items():
        if text.endswith(suffix):
            text, factor = text.removesuffix(suffix), scale
            break
    try:
        number = Decimal(text) * factor
    except InvalidOperation:
        return None
    return number if number.is_finite() else None

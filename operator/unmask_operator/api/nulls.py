"""Removes explicit nulls from a spec. A null means that the field is not set."""

from collections.abc import Mapping
from typing import Any

from unmask_operator.objects import Obj

# Members of podTemplate in which null deletes a rendered value.
_KEEPS_NULLS = ("metadata", "spec")
SELECTOR = "matchLabels"  # removing an entry would select more objects, so the schema rejects nulls here


def without_nulls(spec: Mapping[str, Any]) -> Obj:
    """Returns a spec without the fields and map entries that are null.

    Nulls in podTemplate's metadata and spec remain, since they delete rendered values. Null entries of lists and label
    selectors remain too; the schema rejects them.
    """
    made = {member: _without(value) for member, value in spec.items() if value is not None and member != "podTemplate"}
    template = spec.get("podTemplate")
    if isinstance(template, Mapping):
        made["podTemplate"] = {
            member: value if member in _KEEPS_NULLS else _without(value)
            for member, value in template.items()
            if value is not None
        }
    elif template is not None:
        made["podTemplate"] = template
    return made


def _without(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            member: inner if member == SELECTOR else _without(inner)
            for member, inner in value.items()
            if inner is not None
        }
    return [_without(entry) for entry in value] if isinstance(value, list) else value

"""Explicit nulls of a spec: they mean that the field is not set."""

from collections.abc import Mapping
from typing import Any

from unmask_operator.objects import Obj

# The objects below podTemplate in which null deletes a rendered value.
_KEEPS_NULLS = ("metadata", "spec")
SELECTOR = "matchLabels"  # without one of its entries it would select more, so a null there is refused


def without_nulls(spec: Mapping[str, Any]) -> Obj:
    """Returns a spec without the fields and map entries that are null.

    The content of podTemplate stays, where null deletes. So do null entries of lists and of label selectors, which the
    schema refuses.
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

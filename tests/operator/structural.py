"""Checks a value against a structural schema as the API server does, for the keywords that the CRD uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
}
_KNOWN = {
    *("description", "type", "format", "enum", "required", "properties", "items", "pattern"),
    *("minLength", "maxLength", "minimum", "maximum", "maxItems"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}


def violations(schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yields a sentence per violation. A field that the schema lacks is one, because the API server prunes it."""
    assert schema.keys() <= _KNOWN, f"{path}: this check does not support {schema.keys() - _KNOWN}"
    if not isinstance(value, _TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        yield f"{path} is no {schema['type']}: {value!r}"
        return
    match schema["type"]:
        case "string":
            yield from _string(schema, value, path)
        case "integer" | "number":
            if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
                yield f"{path} is out of bounds: {value}"
        case "array":
            yield from _array(schema, value, path)
        case "object":
            missing, unknown = (
                set(schema.get("required", ())) - value.keys(),
                value.keys() - schema["properties"].keys(),
            )
            yield from (f"{path}.{name} is missing" for name in missing)
            yield from (f"{path}.{name} is unknown" for name in unknown)
            for name in value.keys() - unknown:
                yield from violations(schema["properties"][name], value[name], f"{path}.{name}")


def _string(schema: dict[str, Any], value: str, path: str) -> Iterator[str]:
    try:
        value.encode()
    except UnicodeEncodeError:
        yield f"{path} cannot be written as UTF-8"
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{path} has {len(value)} characters"
    if "pattern" in schema and not re.fullmatch(schema["pattern"].removeprefix("^").removesuffix("$"), value):
        yield f"{path} does not match the pattern: {value!r}"
    if value not in schema.get("enum", [value]):
        yield f"{path} is none of {schema['enum']}: {value!r}"
    if schema.get("format") == "date-time":
        try:
            datetime.fromisoformat(value)
        except ValueError:
            yield f"{path} is no time: {value!r}"


def _array(schema: dict[str, Any], value: list[Any], path: str) -> Iterator[str]:
    if len(value) > schema.get("maxItems", len(value)):
        yield f"{path} has {len(value)} entries"
    if names := schema.get("x-kubernetes-list-map-keys"):
        keys = [tuple(entry.get(name) for name in names) for entry in value]
        if len(keys) != len(set(keys)):
            yield f"{path} has a key twice"
    for i, entry in enumerate(value):
        yield from violations(schema["items"], entry, f"{path}[{i}]")

"""Checks a value against a structural schema as the API server does."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs


def violations(schema: dict[str, Any], value: Any) -> Iterator[str]:
    """Yields a sentence per violation. A field that the schema lacks is one, because the API server prunes it."""
    validator = jsonschema_rs.Draft4Validator(_closed(schema), validate_formats=True)  # 1.0 is no integer in Draft 4
    yield from (f"{error.instance_path}: {error.message}" for error in validator.iter_errors(value))
    yield from _repeated_keys(schema, value)


def _closed(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    closed = {"additionalProperties": False} if "properties" in node else {}
    return {name: _closed(inner) for name, inner in node.items()} | closed


def _repeated_keys(schema: dict[str, Any], value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name in value.keys() & schema.get("properties", {}).keys():
            yield from _repeated_keys(schema["properties"][name], value[name])
    elif isinstance(value, list) and (names := schema.get("x-kubernetes-list-map-keys")):
        keys = [tuple(entry.get(name) for name in names) for entry in value]
        yield from (f"two entries have the key {key}" for key in keys if keys.count(key) > 1)

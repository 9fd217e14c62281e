"""Checks that the keywords of a JSON schema have values of the right JSON types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runtime.request.validation import preview
from runtime.structured_output.patterns import Unsupported

Path = tuple[str, ...]

TYPES = frozenset(("null", "boolean", "object", "array", "number", "string"))


class SchemaError(ValueError):
    """An invalid schema."""

    def __init__(self, path: Path, reason: str) -> None:
        where = ".".join(path) or "the schema"
        super().__init__(f"{where if len(where) <= 200 else where[:197] + '...'}: {reason}")


class UnsupportedSchema(SchemaError, Unsupported):
    """A schema with constraints that llguidance cannot express."""


def effective_keywords(schema: Mapping[str, Any], *, is_ref_exclusive: bool) -> dict[str, Any]:
    """Returns the keywords of a subschema that a dialect applies.

    Args:
        schema: The subschema. A keyword with the value null counts as absent: some serializers write it so.
        is_ref_exclusive: Whether keywords next to ``$ref`` are ignored, as in drafts 4 to 7.
    """
    found = {name: value for name, value in schema.items() if value is not None or name == "const"}
    if is_ref_exclusive and "$ref" in found:
        return {"$ref": found["$ref"]}
    return found


def check_keywords(schema: Any, path: Path, *, is_ref_exclusive: bool, checked: set[int]) -> None:
    """Checks the types of all keywords of a schema and of its subschemas, also of those without effect.

    Annotations and unknown keywords are not checked. Neither are definitions, which need not be schemas: a definition
    is checked when a reference refers to it.

    Args:
        schema: The root, or the target of a reference.
        path: Path of `schema` in messages.
        is_ref_exclusive: As in `effective_keywords`.
        checked: Ids of the subschemas that earlier calls have checked; this call adds its own.

    Raises:
        SchemaError: A value has a wrong type. The message begins with the path of the keyword.
    """
    pending: list[tuple[Any, Path]] = [(schema, path)]
    while pending:
        value, where = pending.pop()
        if isinstance(value, bool):
            continue
        if not isinstance(value, Mapping):
            raise SchemaError(where, f"{preview(value)} is not a schema; give an object, true or false")
        if id(value) in checked:
            continue
        checked.add(id(value))
        for keyword, found in effective_keywords(value, is_ref_exclusive=is_ref_exclusive).items():
            if check := _CHECKS.get(keyword):
                pending.extend(check(found, (*where, keyword)))


_Subschemas = Iterator[tuple[Any, Path]]
_Check = Callable[[Any, Path], _Subschemas]


def _typed(is_valid: Callable[[Any], bool], reason: str) -> _Check:
    """Returns the check of a keyword without subschemas. `reason` follows the value in the message."""

    def check(value: Any, path: Path) -> _Subschemas:
        if not is_valid(value):
            raise SchemaError(path, f"{preview(value)} {reason}")
        return iter(())

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _is_count(value: Any) -> bool:
    """Returns whether a value bounds a count; JSON Schema takes 2.0 for 2."""
    exact = value.is_integer() if isinstance(value, float) else isinstance(value, int) and not isinstance(value, bool)
    return exact and value >= 0


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _subschema(value: Any, path: Path) -> _Subschemas:
    yield value, path


def _subschema_list(value: Any, path: Path) -> _Subschemas:
    if not isinstance(value, list):
        raise SchemaError(path, f"{preview(value)} is not a list")
    for i, each in enumerate(value):
        yield each, (*path, str(i))


def _alternatives(value: Any, path: Path) -> _Subschemas:
    if value == []:
        raise SchemaError(path, "is empty; give one schema or more")
    return _subschema_list(value, path)


def _items(value: Any, path: Path) -> _Subschemas:
    return (_subschema_list if isinstance(value, list) else _subschema)(value, path)


def _subschema_map(value: Any, path: Path) -> _Subschemas:
    if not isinstance(value, Mapping):
        raise SchemaError(path, f"{preview(value)} is not an object of schemas")
    for name, each in value.items():
        yield each, (*path, name)


def _required_names(value: Any, path: Path) -> _Subschemas:
    if not isinstance(value, Mapping):
        raise SchemaError(path, f"{preview(value)} is not an object")
    for name, needed in value.items():
        if not _is_list_of_names(needed):
            raise SchemaError((*path, name), f"{preview(needed)} is not a list of names")
    return iter(())


def _dependencies(value: Any, path: Path) -> _Subschemas:
    """Checks a keyword of draft 7 whose members are schemas or lists of names."""
    if not isinstance(value, Mapping):
        raise SchemaError(path, f"{preview(value)} is not an object")
    _required_names({name: needed for name, needed in value.items() if isinstance(needed, list)}, path)
    return _subschema_map({name: needed for name, needed in value.items() if not isinstance(needed, list)}, path)


def _type(value: Any, path: Path) -> _Subschemas:
    if value == []:
        raise SchemaError(path, "is empty; name one type or more")
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or (name not in TYPES and name != "integer"):
            known = ", ".join(sorted(TYPES | {"integer"}))
            raise SchemaError(path, f"{preview(name)} is not a type of JSON; there are {known}")
    return iter(())


_COUNT = _typed(_is_count, "is not a whole number from 0 on")
_NUMBER = _typed(_is_number, "is not a number")
_BOUND = _typed(lambda value: isinstance(value, bool) or _is_number(value), "is not a number")  # a bool in draft 4
_BOOL = _typed(lambda value: isinstance(value, bool), "is not true or false")
_TEXT = _typed(lambda value: isinstance(value, str), "is not a text")
_CHECKS: dict[str, _Check] = {
    "type": _type,
    "enum": _typed(lambda value: isinstance(value, list), "is not a list"),
    "format": _typed(lambda value: isinstance(value, str), "is not the name of a format"),
    "pattern": _typed(lambda value: isinstance(value, str), "is not a regular expression"),
    # A boolean `required` belongs to a property, in draft 3.
    "required": _typed(lambda value: isinstance(value, bool) or _is_list_of_names(value), "is not a list of names"),
    "dependentRequired": _required_names,
    "dependencies": _dependencies,
    "items": _items,
    "prefixItems": _subschema_list,
    "multipleOf": _typed(lambda value: _is_number(value) and 0 < value < math.inf, "is not a number above 0"),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _BOUND),
    **{f"{bound}{of}": _COUNT for bound in ("min", "max") for of in ("Length", "Items", "Properties", "Contains")},
    **dict.fromkeys(("uniqueItems", "$recursiveAnchor"), _BOOL),
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef", "$id", "$schema", "$anchor", "$dynamicAnchor"), _TEXT),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _TEXT),
    **dict.fromkeys(("$defs", "definitions"), _typed(lambda value: isinstance(value, Mapping), "is not an object")),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _alternatives),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _subschema_map),
    **dict.fromkeys(("additionalItems", "unevaluatedItems", "contains"), _subschema),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames"), _subschema),
    **dict.fromkeys(("not", "if", "then", "else"), _subschema),
}

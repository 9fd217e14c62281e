"""Keywords and references of a JSON schema: their effect, the types of their values, and the targets of references."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from runtime.request.validation import preview
from runtime.structured_output.patterns import Unsupported

_DATA = ("const", "enum", "default", "example", "examples")  # keywords whose values are not schemas


class References:
    """Resolves the references of one schema document (JSON Schema 2020-12 core, 8.2; earlier drafts likewise).

    Attributes:
        has_one_of: Whether the document has a ``oneOf``, which would accept more values if one of its alternatives
            became stricter.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._bases: dict[int, str] = {}  # base URI by identity of the subschema
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[str, list[Any]] = {}
        self._recursive = 0  # embedded schemas that `$recursiveRef` may resolve to, in addition to the root
        self.has_one_of = False
        self._index()

    def find(self, reference: object, origin: Mapping[str, Any]) -> Any:
        """Resolves the ``$ref`` of the subschema `origin`.

        Raises:
            ValueError: The target is outside the document or does not exist.
        """
        if not isinstance(reference, str):
            raise ValueError("must be a text")
        base = self._bases.get(id(origin), "")
        address, fragment = urldefrag(base + reference if reference.startswith("#") else urljoin(base, reference))
        resource = self._resources.get(address)
        if resource is None:
            raise Unsupported(f"{preview(reference)} is outside of the schema; put its target into $defs")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((address, fragment))
        else:
            found = _at(resource, fragment)
        if not isinstance(found, bool | Mapping):
            raise ValueError(f"{preview(reference)} names nothing in the schema; add its target, or correct it")
        return found

    def find_dynamic(self, reference: object, origin: Mapping[str, Any]) -> Any:
        """Resolves a ``$dynamicRef`` whose target does not depend on the path of evaluation.

        Raises:
            ValueError: There is no target, or several are possible.
        """
        name = urldefrag(reference)[1] if isinstance(reference, str) else ""
        named = self._dynamic.get(name, [])
        if len(named) > 1:
            raise Unsupported(f"{preview(reference)} has {len(named)} possible targets; write $ref")
        return named[0] if named else self.find(reference, origin)

    def find_recursive(self, origin: Mapping[str, Any]) -> Any:
        """Resolves a ``$recursiveRef``, as `find_dynamic` does."""
        if self._recursive:
            raise Unsupported("has several possible targets; write $ref")
        return self.find("#", origin)

    def _index(self) -> None:
        pending: list[tuple[Any, str]] = [(self._root, "")]
        while pending:
            value, base = pending.pop()
            if isinstance(value, list):
                pending += [(item, base) for item in value if isinstance(item, dict | list)]
            if not isinstance(value, Mapping):
                continue
            base = self._entered(value, base)
            self._bases[id(value)] = base
            self.has_one_of = self.has_one_of or "oneOf" in value
            for keyword, found in value.items():
                if keyword not in _DATA and isinstance(found, dict | list):
                    pending.append((found, base))

    def _entered(self, value: Mapping[str, Any], base: str) -> str:
        """Registers the names of a subschema; returns the base of its references."""
        for keyword in ("$id", "id"):
            own = value.get(keyword)
            if isinstance(own, str) and own:
                address, fragment = urldefrag(urljoin(base, own))
                if fragment:  # an anchor, in drafts before 2019-09
                    self._anchors.setdefault((address or base, fragment), value)
                elif keyword == "$id" or value is self._root:
                    base = address
                    self._resources.setdefault(address, value)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := value.get(keyword), str):
                self._anchors.setdefault((base, anchor), value)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(value)
        self._recursive += value.get("$recursiveAnchor") is True and value is not self._root
        return base


def _at(resource: Any, pointer: str) -> Any:
    """Resolves a JSON pointer (RFC 6901); None if there is no target."""
    found = resource
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


Path = tuple[str, ...]

TYPES = frozenset(("null", "boolean", "object", "array", "number", "string"))


def named_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Returns the JSON types that ``type`` allows; an integer counts as number."""
    named = schema.get("type", list(TYPES))
    return frozenset("number" if name == "integer" else name for name in ([named] if isinstance(named, str) else named))


def nullable_type(named: str | list[str]) -> list[str]:
    """Returns the value of ``type`` next to ``nullable: true``.

    The keyword adds null to ``type`` of the same subschema, and to nothing else: an ``enum`` has to list null (OpenAPI
    3.0.3, Schema Object; the validator Ajv reads it in the same way).
    """
    return list(dict.fromkeys([*([named] if isinstance(named, str) else named), "null"]))


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
    """Returns whether a value is a valid bound of a count. In JSON Schema, 2.0 equals 2."""
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

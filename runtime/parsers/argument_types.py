"""Types that the schema of a tool allows for an argument, to read values that a model wrote as plain text."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runtime.parsers import formats

_NUMBER = frozenset({"number", "integer"})  # an integer is a number, but not the reverse
_ALL = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
# Names that some SDKs write for types, besides those of JSON in capitals.
_OTHER_NAMES = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array",
}  # fmt: skip
_VALUES = ("const", "default", "enum", "example", "examples")  # keywords whose values are no schemas
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # of schemas by name
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
# A string in either kind of quotes, a constant of Python, or a comma before a closing bracket. A string without its end
# extends to that of the text, so that it is read once.
_PYTHON = re.compile(
    r""""(?:[^"\\]|\\.)*(?:"|\\?\Z)|'(?:[^'\\]|\\.)*(?:'|\\?\Z)|\b(?:True|False|None)\b|,(?=\s*[}\]])""",
    re.DOTALL,
)


class ArgumentTypes:
    """The types of a value, and of the values inside it.

    Alternatives (`anyOf`, `oneOf`, `allOf`) and references within the schema are followed. What a schema does not say
    is allowed.

    Attributes:
        allowed: Names of JSON's types. "number" is never without "integer".
        is_text: Whether plain text is a string, as it stands.
    """

    def __init__(self, schemas: Iterable[Any], root: Mapping[str, Any]) -> None:
        """
        Args:
            schemas: Alternative schemas of the value; none: it can have any type.
            root: Schema in which their references are looked up.
        """
        self._root = root
        self._schemas = list(schemas)
        known: dict[int, frozenset[str]] = {}
        self.allowed = _ALL
        with contextlib.suppress(RecursionError):  # of very long chains of references nothing is known
            each = [self._types(schema, known) for schema in self._schemas]
            self.allowed = frozenset().union(*each) if each else _ALL
        self.is_text = "string" in self.allowed and self.allowed != _ALL
        self._properties: dict[str, ArgumentTypes] = {}

    @classmethod
    def of_tool(cls, name: str, tools: Sequence[formats.Tool]) -> ArgumentTypes:
        """Returns the types of the arguments of a tool; any, if the tool is not known."""
        parameters = next((tool.parameters for tool in tools if tool.name == name), None)
        return cls([] if parameters is None else [parameters], parameters or {})

    def has_property(self, name: str) -> bool:
        """Returns whether a schema names this property, or names none at all."""
        return not self._named or any(name in properties for properties in self._named)

    @functools.cached_property
    def _named(self) -> list[dict[str, Any]]:
        """The values of ``properties`` in all schemas."""
        return [properties for properties in self._members("properties") if isinstance(properties, dict)]

    def of_property(self, name: str) -> ArgumentTypes:
        """Returns the types of a property of this object."""
        if name not in self._properties:
            named = [properties[name] for properties in self._named if name in properties]
            self._properties[name] = ArgumentTypes(named, self._root) if named else self._of_others
        return self._properties[name]

    @functools.cached_property
    def _of_others(self) -> ArgumentTypes:
        """The types of properties that no schema names."""
        return ArgumentTypes(self._members("additionalProperties"), self._root)

    @functools.cached_property
    def of_items(self) -> ArgumentTypes:
        """The types of the elements of this array."""
        return ArgumentTypes((items for items in self._members("items") if not isinstance(items, list)), self._root)

    def read(self, text: str) -> Any:
        """Returns the value that a model wrote as text without quotes; text if it is no value of another type.

        Raises:
            NestedTooDeeplyError: It is JSON with more levels than Python can parse.
        """
        if "null" in self.allowed and self.allowed != _ALL and text.strip() in ("null", "None"):
            return None
        if self.is_text:
            return text
        try:
            value = parse_python(text)
        except formats.NestedTooDeeplyError:
            raise
        except ValueError:
            return text
        if isinstance(value, float) and not math.isfinite(value):
            return text
        if isinstance(value, float) and value.is_integer() and "number" not in self.allowed:
            return int(value)
        return value

    def _members(self, keyword: str) -> Iterator[Any]:
        """Yields the values of a keyword in the schemas and in those that they refer to."""
        return (schema[keyword] for schema in applied(self._schemas, self._root) if keyword in schema)

    def _types(self, schema: Any, known: dict[int, frozenset[str]]) -> frozenset[str]:
        """Returns the types that one schema allows. `known` has those of schemas that have been visited."""
        if not isinstance(schema, Mapping):
            return _ALL
        if id(schema) in known:
            return known[id(schema)]
        known[id(schema)] = _ALL  # for a reference to itself
        allowed = _named_types(schema.get("type"))
        values = [*_listed(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        if values:
            allowed &= frozenset().union(*map(_types_of_value, values))
        parts = _alternatives(schema)
        for either in ("anyOf", "oneOf"):
            if parts[either]:
                allowed &= frozenset().union(*(self._types(part, known) for part in parts[either]))
        for part in (*parts["allOf"], _target(schema, self._root)):
            allowed &= self._types(part, known)
        if schema.get("nullable") is True:
            allowed |= {"null"}
        known[id(schema)] = allowed
        return allowed


def with_json_types(schema: Any) -> Any:
    """Returns a schema in which the types have JSON's names. Google's SDKs write them in capitals.

    Args:
        schema: JSON schema, or a part of one.
    """
    if isinstance(schema, list):
        return [with_json_types(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    changed = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            changed[key] = {name: with_json_types(part) for name, part in value.items()}
        else:
            changed[key] = value if key in _VALUES else with_json_types(value)
    kind = schema.get("type")
    if isinstance(kind, str | list):
        changed["type"] = _json_type(kind) if isinstance(kind, str) else [*map(_json_type, kind)]
    return changed


def _json_type(name: Any) -> Any:
    lower = name.lower() if isinstance(name, str) else ""
    return _OTHER_NAMES.get(lower, lower if lower in _ALL else name)


def applied(schemas: Iterable[Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the schemas, and those in them that apply to the same value, in the order of the text.

    Args:
        schemas: Schemas of one value.
        root: Schema in which their references are looked up.
    """
    waiting, seen = list(schemas)[::-1], set[int]()
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, Mapping) and id(schema) not in seen:
            seen.add(id(schema))
            yield schema
            parts = [part for parts in _alternatives(schema).values() for part in parts]
            waiting += [*parts, _target(schema, root)][::-1]


def parse_python(text: str) -> Any:
    """Parses JSON, also with line breaks in strings, and with Python's quotes, constants and commas at the end.

    Raises:
        NestedTooDeeplyError: It has more levels than Python can parse.
        ValueError: It is neither.
    """
    try:
        return formats.parse_json(text, strict=False)
    except formats.NestedTooDeeplyError:
        raise
    except ValueError:
        return formats.parse_json(_PYTHON.sub(_as_json, text), strict=False)


def _as_json(found: re.Match[str]) -> str:
    """Returns a piece of Python's notation in that of JSON."""
    piece = found[0]
    if piece[0] == "'" and len(piece) > 1 and piece[-1] == "'":
        inner = piece[1:-1].replace("\\'", "'")
        return '"' + re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inner) + '"'
    return "" if piece == "," else _CONSTANTS.get(piece, piece)


def _target(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Returns the schema that `$ref` points to; None if there is none."""
    pointer = schema.get("$ref")
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return None
    target: Any = root
    for part in pointer[1:].split("/")[1:]:
        if not isinstance(target, Mapping):
            return None
        target = target.get(part.replace("~1", "/").replace("~0", "~"))
    return target


def _alternatives(schema: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {keyword: _listed(schema.get(keyword)) for keyword in ("anyOf", "oneOf", "allOf")}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named_types(value: Any) -> frozenset[str]:
    names = [value] if isinstance(value, str) else [name for name in _listed(value) if isinstance(name, str)]
    if not names:
        return _ALL
    types = (_NUMBER if name == "number" else frozenset({name}) for name in names)
    return (frozenset().union(*types) & _ALL) or _ALL  # an unknown name says nothing


def _types_of_value(value: Any) -> frozenset[str]:
    if value is None or isinstance(value, bool):
        return frozenset({"null" if value is None else "boolean"})
    kinds = {str: "string", int: "integer", list: "array", dict: "object"}
    return _NUMBER if isinstance(value, float) else frozenset({kinds[type(value)]})

"""Bounds values of a rewritten schema that have no bound of their own, so that a model cannot continue them forever.

Arrays get a maximum length. Integers fit into 64 bits, as readers in Go, Java, Rust and C# need. A value without any
constraint gets a schema with these bounds, at each level. The length of strings is bounded while decoding
(`witness.py`): as a `maxLength`, each of its characters would be a state of llguidance's lexer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from runtime.request.validation import integral
from runtime.structured_output.json_schema import MAX_NUMBER, Schema

MAX_INTEGER = 9 * 10**18  # fits into 64 bits, and is exact as a double, which llguidance reads
_ANY = "any"  # name of the definition of a bounded value of any type
_REFERENCE = {"$ref": f"#/$defs/{_ANY}"}
_ALTERNATIVES = {"allOf", "anyOf", "oneOf"}
_COMBINATIONS = {"$ref", *_ALTERNATIVES}  # further schemas of the same value
_NO_CONSTRAINTS = {"$defs", "x-guidance"}
# Keywords whose values are lists of schemas, schemas by name, and single schemas.
_LISTS = {"prefixItems", *_ALTERNATIVES}
_MAPS = {"properties", "patternProperties", "$defs"}
_SINGLE = {"items", "additionalProperties"}


def bound_values(schema: Mapping[str, Any], max_items: int) -> dict[str, Any]:
    """Returns a schema of llguidance's keywords with bounds where it has none.

    Args:
        schema: Rewritten schema.
        max_items: Maximum items of an array; 0: any number. A larger bound of the schema raises it everywhere, because
            that may be in another schema of the same value.
    """
    raised = max_items and max(max_items, largest(schema, ("maxItems", "minItems")))
    bounder = _Bounder(raised, bounds_any=not _combines(schema))
    made = bounder.schema(dict(schema), is_part=False)
    assert isinstance(made, dict)
    if bounder.has_any:
        made["$defs"] = {**made.get("$defs", {}), _ANY: bounder.any()}
    return made


def largest(schema: Any, keywords: Collection[str]) -> int:
    """Returns the largest value of keywords of a schema, as a client wrote it or rewritten; 0 if it has none."""
    found, pending = 0, [schema]
    while pending:
        each = pending.pop()
        if isinstance(each, Mapping):
            numbers = (integral(each.get(name)) for name in keywords)
            found = max([found, *(number for number in numbers if isinstance(number, int))])
            pending += each.values()
        elif isinstance(each, list | tuple):
            pending += each
    return found


def _combines(schema: Mapping[str, Any]) -> bool:
    """Returns whether several schemas apply to one value: llguidance cannot combine any if they refer to themselves."""
    pending: list[Schema] = [dict(schema)]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            others = value.keys() - _NO_CONSTRAINTS
            if "allOf" in value or (len(others) > 1 and others & _COMBINATIONS):
                return True
            pending += _subschemas(value)
    return False


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Schema]:
    for name in schema.keys() & _LISTS:
        yield from schema[name]
    for name in schema.keys() & _MAPS:
        yield from schema[name].values()
    for name in schema.keys() & _SINGLE:
        yield schema[name]


def _map(schema: Mapping[str, Any], change: Callable[[Schema], Schema]) -> dict[str, Any]:
    """Returns a schema with changed subschemas."""
    made = dict(schema)
    for name in made.keys() & _LISTS:
        made[name] = [change(each) for each in made[name]]
    for name in made.keys() & _MAPS:
        made[name] = {key: change(each) for key, each in made[name].items()}
    for name in made.keys() & _SINGLE:
        made[name] = change(made[name])
    return made


class _Bounder:
    def __init__(self, max_items: int, *, bounds_any: bool) -> None:
        """`bounds_any`: values without any constraint get bounds, too."""
        self._max_items = max_items
        self._bounds_any = bounds_any
        self.has_any = False

    def any(self) -> dict[str, Any]:
        """Returns the schema of a bounded value of any type."""
        return self._bounded({}, is_part=False)

    def schema(self, value: Schema, *, is_part: bool) -> Schema:
        """Returns a subschema with bounds. `is_part`: other schemas apply to the same value."""
        if value is True or value == {}:
            if is_part or not self._bounds_any:
                return value
            self.has_any = True
            return dict(_REFERENCE)
        if value is False:
            return False
        combined = is_part or len(value.keys() - _NO_CONSTRAINTS) > 1
        is_part = is_part or any(name in value for name in _COMBINATIONS)
        made = {name: each for name, each in value.items() if name not in _ALTERNATIVES}
        made = _map(made, lambda each: self.schema(each, is_part=False))
        for name in _ALTERNATIVES & value.keys():
            made[name] = [self.schema(each, is_part=combined or name == "allOf") for each in value[name]]
        if "const" in made or "enum" in made or (is_part and "type" not in made):
            return made
        return self._bounded(made, is_part=is_part)

    def _bounded(self, made: dict[str, Any], *, is_part: bool) -> dict[str, Any]:
        kinds = made.get("type", ("number", "array", "object"))
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        if kinds & {"integer", "number"} and "multipleOf" not in made:
            bound = MAX_NUMBER if "number" in kinds else MAX_INTEGER
            if not made.keys() & {"minimum", "exclusiveMinimum"}:
                made["minimum"] = -bound
            if not made.keys() & {"maximum", "exclusiveMaximum"}:
                made["maximum"] = bound
        if "array" in kinds:
            if self._max_items and "maxItems" not in made:
                made["maxItems"] = self._max_items
            if "items" not in made and not is_part and self._bounds_any:
                made["items"] = self.schema(True, is_part=False)
        if "object" in kinds and "additionalProperties" not in made and not is_part and self._bounds_any:
            made["additionalProperties"] = self.schema(True, is_part=False)
        return made

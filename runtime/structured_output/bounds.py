"""Bounds values of a rewritten schema that have no bound of their own, so that a model cannot continue them forever.

Strings and arrays get a maximum length. Integers have 64 bits, as most readers need (RFC 8259, section 6). A value
without any constraint gets a schema with these bounds, at each level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.structured_output.json_schema import MAX_NUMBER, Schema

_ANY = "any"  # name of the definition of a bounded value of any type
_REFERENCE = {"$ref": f"#/$defs/{_ANY}"}
_COMBINATIONS = ("$ref", "allOf", "anyOf", "oneOf")  # further schemas of the same value
_LISTS, _MAPS, _SINGLE = ("prefixItems", "allOf", "anyOf", "oneOf"), ("properties", "patternProperties", "$defs"), (
    "items", "additionalProperties",
)  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """Maximum characters of a string, and maximum items of an array; 0: any number."""

    max_length: int = 0
    max_items: int = 0


def bound_values(schema: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    """Returns a schema of llguidance's keywords with bounds where it has none.

    A bound of the schema that is larger raises the default everywhere, so it applies also if it is in another schema of
    the same value.
    """
    own = _largest(schema)
    raised = Bounds(
        bounds.max_length and max(bounds.max_length, own["maxLength"], own["minLength"]),
        bounds.max_items and max(bounds.max_items, own["maxItems"], own["minItems"]),
    )
    bounder = _Bounder(raised)
    made = bounder.schema(dict(schema), is_part=False)
    assert isinstance(made, dict)
    if bounder.has_any:
        made["$defs"] = {**made.get("$defs", {}), _ANY: bounder.any()}
    return made


def _largest(schema: Any) -> dict[str, int]:
    """Returns the largest value of each keyword that bounds a length."""
    found = {"maxLength": 0, "minLength": 0, "maxItems": 0, "minItems": 0}

    def visit(value: Schema) -> Schema:
        if isinstance(value, dict):
            for name in found.keys() & value.keys():
                found[name] = max(found[name], value[name])
            _map(value, visit)
        return value

    visit(schema)
    return found


def _map(schema: Mapping[str, Any], change: Callable[[Schema], Schema]) -> dict[str, Any]:
    """Returns a schema with changed subschemas."""
    made = dict(schema)
    for name in made.keys() & set(_LISTS):
        made[name] = [change(each) for each in made[name]]
    for name in made.keys() & set(_MAPS):
        made[name] = {key: change(each) for key, each in made[name].items()}
    for name in made.keys() & set(_SINGLE):
        made[name] = change(made[name])
    return made


class _Bounder:
    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.has_any = False

    def any(self) -> dict[str, Any]:
        """Returns the schema of a bounded value of any type."""
        return self._bounded({}, is_part=False)

    def schema(self, value: Schema, *, is_part: bool) -> Schema:
        """Returns a subschema with bounds. `is_part`: other schemas apply to the same value."""
        if value is True or value == {}:
            if is_part:
                return value
            self.has_any = True
            return dict(_REFERENCE)
        if value is False:
            return False
        is_part = is_part or any(name in value for name in _COMBINATIONS)
        made = {name: each for name, each in value.items() if name not in ("allOf", "anyOf", "oneOf")}
        made = _map(made, lambda each: self.schema(each, is_part=False))
        for name in ("allOf", "anyOf", "oneOf"):
            if name in value:
                others = is_part if name != "anyOf" or len(value) > 1 else False
                made[name] = [self.schema(each, is_part=others or name == "allOf") for each in value[name]]
        if "const" in made or "enum" in made or (is_part and "type" not in made):
            return made
        return self._bounded(made, is_part=is_part)

    def _bounded(self, made: dict[str, Any], *, is_part: bool) -> dict[str, Any]:
        kinds = made.get("type", ("string", "number", "array", "object"))
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        if "string" in kinds and self._bounds.max_length and not made.keys() & {"maxLength", "pattern"}:
            made["maxLength"] = self._bounds.max_length
        if kinds & {"integer", "number"} and "multipleOf" not in made:
            if not made.keys() & {"minimum", "exclusiveMinimum"}:
                made["minimum"] = -MAX_NUMBER
            if not made.keys() & {"maximum", "exclusiveMaximum"}:
                made["maximum"] = MAX_NUMBER
        if "array" in kinds:
            if self._bounds.max_items and "maxItems" not in made:
                made["maxItems"] = self._bounds.max_items
            if "items" not in made and not is_part:
                made["items"] = self.schema(True, is_part=False)
        if "object" in kinds and "additionalProperties" not in made and not is_part:
            made["additionalProperties"] = self.schema(True, is_part=False)
        return made

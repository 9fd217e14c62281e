"""Decides whether the schemas of a ``oneOf`` exclude each other: then it is an ``anyOf``, which llguidance supports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from runtime.structured_output.keywords import TYPES, named_types

MAX_ALTERNATIVES = 100  # limit, because all pairs are compared
_DEPTH = 8  # levels of references and allOf that are followed


@dataclass
class _SchemaFacts:
    """Properties that every value of a schema certainly has.

    Attributes:
        types: JSON types that it may have.
        values: Values that it may be, as JSON text; None for any.
        required: Properties that it has.
        properties: Schemas of properties that it has.
        closed: The only properties that it may have; None for any.
    """

    types: frozenset[str] = TYPES
    values: frozenset[str] | None = None
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[Any]] = field(default_factory=dict)
    closed: frozenset[str] | None = None


def all_disjoint(alternatives: Sequence[Any], definitions: Mapping[str, Any]) -> bool:
    """Returns whether no value fits two of the simplified schemas; False if that is not certain."""
    if len(alternatives) > MAX_ALTERNATIVES:
        return False
    facts = [_conjunction([each], definitions) for each in alternatives]
    return all(_disjoint(one, other, definitions, _DEPTH) for one, other in combinations(facts, 2))


def _disjoint(one: _SchemaFacts, other: _SchemaFacts, definitions: Mapping[str, Any], depth: int) -> bool:
    types = one.types & other.types
    if not types:
        return True
    if one.values is not None and other.values is not None and not one.values & other.values:
        return True
    if types != {"object"}:
        return False
    if _lacks_required(one, other) or _lacks_required(other, one):
        return True
    common = one.properties.keys() & other.properties.keys() & (one.required | other.required)
    pairs = ([_conjunction(each.properties[name], definitions) for each in (one, other)] for name in common)
    return depth > 0 and any(_disjoint(mine, theirs, definitions, depth - 1) for mine, theirs in pairs)


def _lacks_required(one: _SchemaFacts, other: _SchemaFacts) -> bool:
    """Returns whether `one` requires a property that `other` cannot have."""
    return other.closed is not None and not one.required <= other.closed


def _conjunction(schemas: Sequence[Any], definitions: Mapping[str, Any]) -> _SchemaFacts:
    """Returns the properties of all values that fit all of the schemas."""
    found = _SchemaFacts()
    pending = [(schema, _DEPTH) for schema in schemas]
    while pending:
        schema, depth = pending.pop()
        if schema is False:
            found.types = frozenset()
        if not isinstance(schema, Mapping):
            continue
        if depth:
            pending += [(each, depth - 1) for each in schema.get("allOf", ())]
            if "$ref" in schema:
                pending.append((definitions.get(schema["$ref"].rpartition("/")[2], True), depth - 1))
        _add(found, schema)
    return found


def _add(found: _SchemaFacts, schema: Mapping[str, Any]) -> None:
    found.types &= named_types(schema)
    for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
        if values is not None:
            texts = frozenset(map(_canonical, values))
            found.values = texts if found.values is None else found.values & texts
    found.required.update(schema.get("required", ()))
    for name, each in schema.get("properties", {}).items():
        found.properties.setdefault(name, []).append(each)
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        names = frozenset(schema.get("properties", ()))
        found.closed = names if found.closed is None else found.closed & names


def _canonical(value: Any) -> str:
    """Returns the same text for equal JSON values: 1 and 1.0 are equal, true and 1 are not."""

    def number(each: Any) -> Any:
        if isinstance(each, float) and each.is_integer():
            return int(each)
        if isinstance(each, dict):
            return {name: number(one) for name, one in each.items()}
        return [number(one) for one in each] if isinstance(each, list) else each

    return json.dumps(number(value), sort_keys=True)

"""Rewrites JSON schemas to keywords of llguidance, so that no value is accepted that the original refuses.

Clients send keywords that forbid nothing (``uniqueItems: false``) and keywords that others can express
(``propertyNames`` with an ``enum``). llguidance refuses both. The rewritten schema has neither. Annotations and unknown
formats are dropped. A keyword that constrains values and cannot be expressed is refused by name. Keywords are those of
JSON Schema 2020-12, with the spellings of drafts 4 to 2019-09 and of OpenAPI 3.0.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Any

from runtime.request.validation import preview
from runtime.structured_output import patterns
from runtime.structured_output.disjoint import all_disjoint
from runtime.structured_output.formats import FORMATS, NAME_FORMATS
from runtime.structured_output.keywords import (
    TYPES,
    Path,
    References,
    SchemaError,
    UnsupportedSchema,
    check_keywords,
    effective_keywords,
    named_types,
    nullable_type,
)

Schema = bool | dict[str, Any]

MAX_NUMBER = 10**18  # llguidance's bounds of numbers have 64 bits
_EXACT_DIGITS = 15  # decimals with so many digits are different doubles
_EXACT = 10**_EXACT_DIGITS
_SMALLEST = 1e-17  # number above an excluded 0
_APPLICATORS = frozenset(
    ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas")
)  # keywords whose subschemas apply to the same value
# Keywords that make the evaluated properties depend on the object, or evaluate properties without listing them.
_EVALUATES_OTHERS = _APPLICATORS - {"$ref", "allOf"}
_EVALUATES_OTHERS |= {"patternProperties", "additionalProperties", "unevaluatedProperties"}
# Keywords unknown to a dialect. They are applied anyway, except in documents with a oneOf: a stricter alternative would
# make it accept more values.
_UNKNOWN_IN_2020 = frozenset(("$recursiveRef",))
_UNKNOWN_IN_2019 = frozenset(("prefixItems", "$dynamicRef"))
_UNKNOWN_BEFORE = _UNKNOWN_IN_2019 | frozenset(
    ("unevaluatedItems", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "$recursiveRef")
)
_DEFINITION = "#/$defs/"  # the start of a reference
_ANY_NAME = frozenset(("", "^", ".*", "^.*", "^[\\s\\S]*$"))  # patterns that match every text
OVERLAP = (
    'two alternatives may fit at once; write anyOf, or put "x-guidance": {"coerce_one_of": true} at the top of the '
    "schema, which treats oneOf as anyOf"
)


def _error(path: Path, error: ValueError) -> SchemaError:
    kind = UnsupportedSchema if isinstance(error, patterns.Unsupported) else SchemaError
    return kind(path, str(error))


def simplify_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrites a schema to keywords of llguidance.

    Args:
        schema: As a client wrote it. Its ``x-guidance`` is copied; no two of its subschemas are the same object.

    Returns:
        A schema of the 2020-12 dialect that accepts no value that the original refuses.

    Raises:
        UnsupportedSchema: A keyword is not supported; the message begins with its path.
        SchemaError: A keyword is invalid.
    """
    simplifier = _Simplifier(schema)
    made = simplifier.run()
    # A oneOf that remains would accept more with a stricter alternative.
    return _Simplifier(schema, has_name_formats=False).run() if simplifier.one_of else made


def remaining_one_of(schema: Mapping[str, Any]) -> list[str]:
    """Returns the paths of the ``oneOf`` that simplification leaves."""
    simplifier = _Simplifier(schema)
    simplifier.run()
    return [".".join(path) for path in simplifier.one_of]


@dataclass(frozen=True)
class _Names:
    """Property names that a ``propertyNames`` allows: a finite list, or all that match patterns and lengths."""

    listed: tuple[str, ...] | None = None
    patterns: tuple[str, ...] = ()
    shortest: int = 0
    longest: int | None = None

    @property
    def any(self) -> bool:
        return self == _Names()

    @property
    def none(self) -> bool:
        return self.listed == ()

    def __and__(self, other: _Names) -> _Names:
        lists = [names.listed for names in (self, other) if names.listed is not None]
        listed = lists[0] if lists else None
        if len(lists) > 1:
            listed = tuple(name for name in lists[0] if name in set(lists[1]))
        bounds = [names.longest for names in (self, other) if names.longest is not None]
        expressions = tuple(dict.fromkeys(self.patterns + other.patterns))
        return _Names(listed, expressions, max(self.shortest, other.shortest), min(bounds, default=None))


class _Simplifier:
    def __init__(self, root: Mapping[str, Any], *, has_name_formats: bool = True) -> None:
        """`has_name_formats`: whether formats of property names hold, which are annotations for some validators."""
        self._root = root
        self._has_name_formats = has_name_formats
        self._references = References(root)
        dialect = str(root.get("$schema", ""))
        self._is_json_schema = "json-schema.org" in dialect  # JSON Schema ignores `nullable`, OpenAPI does not
        # Drafts 4 to 7 ignore the keywords next to a reference.
        self._is_ref_exclusive = any(f"draft-0{number}" in dialect for number in (4, 5, 6, 7))
        self._old_items = self._is_ref_exclusive or "2019-09" in dialect  # `items` applies to the first items, too
        self._unknown = (
            _UNKNOWN_BEFORE if self._is_ref_exclusive else _UNKNOWN_IN_2019 if self._old_items else _UNKNOWN_IN_2020
        )
        self._checked: set[int] = set()  # ids of the subschemas whose keywords have the right types
        self._named: dict[int, str] = {}  # definitions, by identity of their original schema
        self._pending: list[tuple[str, Any, Path]] = []
        self._origins: dict[str, Path] = {}  # paths of the first references to definitions
        self._definitions: dict[str, Any] = {}
        self._formats: dict[str, str] = {}  # references to the definitions of formats, by expression
        self._numbers = itertools.count()
        self._exclusive: list[tuple[Path, dict[str, Any], object]] = []  # rewritten schemas with a oneOf, discriminator
        self.one_of: list[Path] = []  # paths of those that remain, unless they are treated as anyOf

    def run(self) -> dict[str, Any]:
        self._check(self._root, ())
        found = self.schema(self._root, ())
        while self._pending:
            name, target, path = self._pending.pop()
            self._definitions[name] = self.schema(target, path)
        self._check_recursion()
        guidance = self._root.get("x-guidance")
        coerces = isinstance(guidance, Mapping) and guidance.get("coerce_one_of")
        for path, each, discriminator in self._exclusive:
            some = each["oneOf"]
            match discriminator:
                case {"propertyName": str(name)} if not (coerces or all_disjoint(some, self._definitions)):
                    some = [_both(one, {"required": [name]}) for one in some]  # OpenAPI 3.1, Discriminator Object
            if "anyOf" not in each and all_disjoint(some, self._definitions):
                each["anyOf"] = some
                del each["oneOf"]
            elif not coerces:
                self.one_of.append(path)
        made: dict[str, Any] = {"enum": []} if found is False else {} if found is True else dict(found)
        if self._definitions:
            made["$defs"] = self._definitions
        if "x-guidance" in self._root:
            made["x-guidance"] = self._root["x-guidance"]
        return made

    def _check_recursion(self) -> None:
        """Raises SchemaError for references that lead back to themselves within one value (2020-12 core, 9.4.1)."""
        try:
            TopologicalSorter({name: _references(each) for name, each in self._definitions.items()}).prepare()
        except CycleError as error:
            path = self._origins.get(error.args[1][0], ())
            raise SchemaError(path, "refers to itself without a property or an item between; name the type") from None

    def _check(self, schema: Any, path: Path) -> None:
        check_keywords(schema, path, is_ref_exclusive=self._is_ref_exclusive, checked=self._checked)

    def _keywords(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keywords of a subschema that apply in this document."""
        value = effective_keywords(origin, is_ref_exclusive=self._is_ref_exclusive)
        if not self._is_json_schema and value.get("nullable") is True and "type" in value:
            value["type"] = nullable_type(value["type"])
        if "pattern" in value and patterns.excludes_format(value["pattern"], value.get("format")):
            del value["format"]
        if self._references.has_one_of:
            value = {name: found for name, found in value.items() if name not in self._unknown}
        return value

    def schema(self, origin: Any, path: Path) -> Schema:
        """Rewrites one subschema; True accepts every value."""
        if isinstance(origin, bool):
            return origin
        value = self._keywords(origin)
        types = _types(value)
        made: dict[str, Any] = {name: value[name] for name in ("type", "const") if name in value}
        if "enum" in value:
            made["enum"] = value["enum"]
        extra: list[Schema] = []  # further schemas of the same value
        for target, where in self._targets(value, origin, path):
            extra.append({"$ref": self._define(target, where)})
        if "string" in types:
            _string(value, path, made, extra)
            if self._is_ref_exclusive and value.get("contentEncoding") == "base64":  # an assertion in draft 7 alone
                extra.append({"pattern": patterns.BASE64})
        if "number" in types:
            _number(value, path, made)
        if "array" in types:
            self._array(value, path, made)
        if "object" in types:
            self._object(value, origin, path, made)
        self._combine(value, path, made, extra)
        if False in extra:
            return False
        if len(extra) == 1 and isinstance(extra[0], dict) and extra[0].keys() <= {"$ref", "anyOf"} - made.keys():
            made |= extra[0]
        elif extra:
            made["allOf"] = [*made.get("allOf", ()), *extra]
        elif value.get("format") in FORMATS and made.keys() == {"type", "pattern"} and made["type"] == "string":
            return {"$ref": self._format(made)}
        return made or True

    def _targets(
        self, value: Mapping[str, Any], origin: Mapping[str, Any], path: Path
    ) -> Iterator[tuple[bool | Mapping[str, Any], Path]]:
        """Yields the targets of a subschema's references, and the path of each reference."""
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword not in value:
                continue
            where = (*path, keyword)
            try:
                if keyword == "$ref":
                    target = self._references.find(value[keyword], origin)
                elif keyword == "$dynamicRef":
                    target = self._references.find_dynamic(value[keyword], origin)
                else:
                    target = self._references.find_recursive(origin)
            except ValueError as error:
                raise _error(where, error) from None
            self._check(target, where)
            yield target, where

    def _define(self, target: Any, path: Path) -> str:
        """Returns a reference to a definition of `target`, which is rewritten later and once."""
        name = self._named.get(id(target))
        if name is None:
            name = self._named[id(target)] = f"d{next(self._numbers)}"
            self._pending.append((name, target, path))
            self._origins[name] = path
        return _DEFINITION + name

    def _combine(self, value: Mapping[str, Any], path: Path, made: dict[str, Any], extra: list[Schema]) -> None:
        """Rewrites ``allOf``, ``anyOf``, ``oneOf``, ``not`` and ``if``."""
        if "allOf" in value:
            every = self._schemas(value["allOf"], (*path, "allOf"))
            if False in every:
                extra.append(False)
            elif every := [each for each in every if each is not True]:
                made["allOf"] = every
        for keyword in ("anyOf", "oneOf"):
            if keyword not in value:
                continue
            some = [each for each in self._schemas(value[keyword], (*path, keyword)) if each is not False]
            if keyword == "anyOf" and True in some:
                continue
            if len(some) < 2:
                extra += some or [False]
            else:
                made[keyword] = [{} if each is True else each for each in some]
                if keyword == "oneOf":
                    self._exclusive.append(((*path, keyword), made, value.get("discriminator")))
        if "not" in value:
            self._negated(value["not"], (*path, "not"), extra)
        if "if" in value:
            self._conditional(value, path, extra)
        extra[:] = [each for each in extra if each is not True]

    def _negated(self, value: Any, path: Path, extra: list[Schema]) -> None:
        found: Schema = {}
        with contextlib.suppress(SchemaError):
            found = self.schema(value, path)
        if isinstance(found, dict):
            raise UnsupportedSchema(path, "a schema that must not hold is not supported; state what must hold instead")
        extra.append(not found)

    def _conditional(self, value: Mapping[str, Any], path: Path, extra: list[Schema]) -> None:
        then, otherwise = (self.schema(value.get(name, True), (*path, name)) for name in ("then", "else"))
        if then is True and otherwise is True:
            return
        condition = self.schema(value["if"], (*path, "if"))
        if isinstance(condition, dict):
            raise UnsupportedSchema(
                (*path, "if"), "a condition is not supported; write anyOf with one alternative per case"
            )
        extra.append(then if condition else otherwise)

    def _schemas(self, value: Any, path: Path) -> list[Schema]:
        return [self.schema(each, (*path, str(i))) for i, each in enumerate(value)]

    def _array(self, value: Mapping[str, Any], path: Path, made: dict[str, Any]) -> None:
        first, items = value.get("prefixItems"), value.get("items", True)
        rest = "items"
        if first is None and isinstance(items, list):  # drafts before 2020-12
            first, items, rest = items, value.get("additionalItems", True), "additionalItems"
        others = self.schema(items, (*path, rest))
        if rest not in value and "unevaluatedItems" in value:
            others = self._unevaluated(value, path, "unevaluatedItems")
        lowest, highest = _count(value, "minItems") or 0, _count(value, "maxItems")
        if "contains" in value:
            lowest, highest = self._contains(value, path, others if not first else None, lowest, highest)
        if value.get("uniqueItems") and (highest is None or highest > 1):
            raise UnsupportedSchema((*path, "uniqueItems"), "true is not supported; leave it out, or set maxItems to 1")
        if first:
            keyword = "prefixItems" if "prefixItems" in value else "items"
            made["prefixItems"] = found = self._schemas(first, (*path, keyword))
            if keyword == "prefixItems" and self._old_items and others is not True:
                made["prefixItems"] = [_both(each, others) for each in found]
        if others is not True:
            made["items"] = others
        if lowest:
            made["minItems"] = lowest
        if highest is not None:
            made["maxItems"] = highest

    def _contains(
        self, value: Mapping[str, Any], path: Path, items: Schema | None, lowest: int, highest: int | None
    ) -> tuple[int, int | None]:
        """Adds the bounds of ``contains`` to those of the number of items. `items`: schema of all items, if any."""
        fewest, bound = _count(value, "minContains"), _count(value, "maxContains")
        if self._is_ref_exclusive:  # the drafts without these two
            fewest = bound = None
        fewest = 1 if fewest is None else fewest
        if not fewest and bound is None:
            return lowest, highest
        found: Schema = {}
        with contextlib.suppress(SchemaError):
            found = self.schema(value["contains"], (*path, "contains"))
        if found is False and not fewest:
            return lowest, highest
        if found is not True and (found is False or found != items):
            raise UnsupportedSchema((*path, "contains"), "is not supported; say it of all items, or of prefixItems")
        bounds = [each for each in (highest, bound) if each is not None]
        return max(lowest, fewest), min(bounds, default=None)

    def _evaluated_names(
        self, origin: Any, path: Path, known: dict[int, frozenset[str] | None] | None = None, ignored: str = ""
    ) -> frozenset[str] | None:
        """Returns the properties that a subschema evaluates in every object; None if they cannot be listed.

        Args:
            origin: The subschema.
            path: Its path.
            known: Results by the ids of subschemas. It has None for a subschema in progress, as in a cycle.
            ignored: A keyword of `origin` that does not count.
        """
        known = {} if known is None else known
        if not isinstance(origin, Mapping):
            return None
        if id(origin) in known:
            return known[id(origin)]
        known[id(origin)] = None
        value = self._keywords(origin)
        if value.keys() & _EVALUATES_OTHERS - {ignored}:
            return None
        parts = [*value.get("allOf", ()), *(target for target, _ in self._targets(value, origin, path))]
        found = frozenset(value.get("properties", ()))
        for part in parts:
            names = self._evaluated_names(part, path, known)
            if names is None:
                return None
            found |= names
        known[id(origin)] = found
        return found

    def _unevaluated(self, value: Mapping[str, Any], path: Path, keyword: str) -> Schema:
        """Rewrites ``unevaluatedItems`` and ``unevaluatedProperties`` without subschemas of the same value."""
        found = self.schema(value[keyword], (*path, keyword))
        applicators = _APPLICATORS | {"contains"} if keyword == "unevaluatedItems" else _APPLICATORS
        if found is not True and applicators & value.keys():
            raise UnsupportedSchema(
                (*path, keyword),
                "is not supported next to a reference or combined schemas; write additionalProperties or items in each",
            )
        return found

    def _object(self, value: Mapping[str, Any], origin: Mapping[str, Any], path: Path, made: dict[str, Any]) -> None:
        properties = self._properties(value, "properties", path)
        patterned = self._properties(value, "patternProperties", path)
        others = self.schema(value.get("additionalProperties", True), (*path, "additionalProperties"))
        if "additionalProperties" not in value and "unevaluatedProperties" in value:
            evaluated = self._evaluated_names(origin, path, ignored="unevaluatedProperties")
            if evaluated is None:
                others = self._unevaluated(value, path, "unevaluatedProperties")
            else:
                others = self.schema(value["unevaluatedProperties"], (*path, "unevaluatedProperties"))
                properties |= dict.fromkeys(sorted(evaluated - properties.keys()), True)
        required = value.get("required", [])
        required = [] if isinstance(required, bool) else list(dict.fromkeys(required))  # draft 3: of a property
        self._dependent(value, path, set(required))
        if "propertyNames" in value:
            where = (*path, "propertyNames")
            names = self._allowed_names(value["propertyNames"], where, ())
            properties, patterned, others = self._named_only(names, properties, patterned, others, where)
        patterned = {_pattern(name, (*path, "patternProperties")): each for name, each in patterned.items()}
        found = {"properties": properties, "patternProperties": patterned, "required": required}
        made |= {keyword: each for keyword, each in found.items() if each}
        if others is not True:
            made["additionalProperties"] = others
        self._property_counts(value, path, made)

    def _properties(self, value: Mapping[str, Any], keyword: str, path: Path) -> dict[str, Schema]:
        return {name: self.schema(each, (*path, keyword, name)) for name, each in value.get(keyword, {}).items()}

    def _dependent(self, value: Mapping[str, Any], path: Path, required: set[str]) -> None:
        """Accepts dependencies that always hold; raises SchemaError for others."""
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needed in value.get(keyword, {}).items():
                where = (*path, keyword, name)
                if isinstance(needed, list):
                    holds = set(needed) <= required | {name}
                else:
                    holds = self.schema(needed, where) is True
                if not holds:
                    raise UnsupportedSchema(where, "is not supported; write anyOf with and without the property")

    def _property_counts(self, value: Mapping[str, Any], path: Path, made: dict[str, Any]) -> None:
        """Rewrites bounds of the number of properties: llguidance supports them if all properties are required."""
        lowest, highest = _count(value, "minProperties") or 0, _count(value, "maxProperties")
        properties, required = made.get("properties", {}), made.get("required", [])
        allowed = [name for name, each in properties.items() if each is not False]
        is_closed = made.get("additionalProperties") is False and not made.get("patternProperties")
        if lowest <= len(required):
            lowest = 0
        if highest is not None and is_closed and highest >= len(allowed):
            highest = None
        for keyword, bound in (("minProperties", lowest or None), ("maxProperties", highest)):
            if bound is None:
                continue
            if not set(properties) <= set(required):
                raise UnsupportedSchema(
                    (*path, keyword), "is not supported with optional properties; make them required"
                )
            made[keyword] = bound
        if lowest > len(required) + 1:
            # llguidance does not compare generated property names, so one may occur twice.
            raise UnsupportedSchema(
                (*path, "minProperties"),
                f"{lowest} is not supported: generated names may repeat; at most {len(required) + 1}",
            )

    def _allowed_names(self, origin: Any, path: Path, seen: tuple[int, ...]) -> _Names:
        """Returns the names that a ``propertyNames`` allows. `seen`: ids of schemas on the path of references."""
        if isinstance(origin, bool):
            return _Names(None if origin else ())
        if id(origin) in seen:
            raise SchemaError(path, "refers to itself; name the properties")
        seen = (*seen, id(origin))
        value = self._keywords(origin)
        found = _own_names(value, path) & self._formatted_names(value)
        for target, where in self._targets(value, origin, path):
            found &= self._allowed_names(target, where, seen)
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword not in value:
                continue
            where = (*path, keyword)
            parts = [self._allowed_names(each, (*where, str(i)), seen) for i, each in enumerate(value[keyword])]
            if keyword == "allOf":
                for part in parts:
                    found &= part
            elif keyword == "anyOf" and any(part.any for part in parts):
                continue
            elif len(parts) == 1:
                found &= parts[0]
            else:
                found &= _Names(_alternatives(parts, where, exclusive=keyword == "oneOf"))
        if "not" in value:
            excluded = self._all_or_no_names(value["not"], (*path, "not"), seen)
            found &= _Names(None if excluded.none else ())
        if "if" in value:
            found &= self._conditional_names(value, path, seen)
        return found

    def _all_or_no_names(self, value: Any, path: Path, seen: tuple[int, ...]) -> _Names:
        """Returns the names that a ``not`` or ``if`` accepts: all or none; refuses others."""
        found = None
        with contextlib.suppress(UnsupportedSchema):
            found = self._allowed_names(value, path, seen)
        if found is None or not (found.any or found.none):
            raise UnsupportedSchema(path, "is not supported for names; give an enum or a pattern")
        return found

    def _conditional_names(self, value: Mapping[str, Any], path: Path, seen: tuple[int, ...]) -> _Names:
        then, otherwise = (self._allowed_names(value.get(name, True), (*path, name), seen) for name in ("then", "else"))
        if then == otherwise:
            return then
        return then if self._all_or_no_names(value["if"], (*path, "if"), seen).any else otherwise

    def _formatted_names(self, value: Mapping[str, Any]) -> _Names:
        """Returns the names that ``format`` and ``contentEncoding`` allow, as far as validators check them."""
        expressions: list[str] = []
        if self._has_name_formats and value.get("format") in NAME_FORMATS:
            expressions.append(NAME_FORMATS[value["format"]])
        if self._is_ref_exclusive and value.get("contentEncoding") == "base64":
            expressions.append(patterns.BASE64)
        return _Names(patterns=tuple(expressions))

    def _named_only(
        self, names: _Names, properties: dict[str, Schema], patterned: dict[str, Schema], others: Schema, path: Path
    ) -> tuple[dict[str, Schema], dict[str, Schema], Schema]:
        """Returns properties, patternProperties and additionalProperties of an object with only names of `names`."""
        if names.any:
            return properties, patterned, others
        keyword = "patternProperties" if patterned else "additionalProperties"
        covering = [each for pattern, each in patterned.items() if pattern in _ANY_NAME or pattern in names.patterns]
        if covering and len(covering) == len(patterned):  # all patternProperties apply to all names
            others = functools.reduce(_both, covering)
            if properties and isinstance(others, dict):
                others = {"$ref": self._shared(others)}
            properties, patterned = {name: _both(each, others) for name, each in properties.items()}, {}
        listed = names.listed
        if listed is None and others is False and not patterned:
            listed = tuple(properties)
        if listed is not None:
            chosen = [name for name in listed if _fits(name, names, path)]
            if len(chosen) > 1 and isinstance(others, dict):
                others = {"$ref": self._shared(others)}
            ordered = [name for name in properties if name in set(chosen)]
            ordered += [name for name in chosen if name not in properties]
            return {name: _at_name(name, properties, patterned, others, path) for name in ordered}, {}, False
        if patterned:
            raise UnsupportedSchema(path, "is not supported next to patternProperties; say it in its expressions")
        if properties and others is not True:
            raise UnsupportedSchema(path, f"is not supported next to properties and {keyword}; give an enum")
        chosen_properties = {name: each for name, each in properties.items() if _fits(name, names, path)}
        expressions = patterns.without_wider(names.patterns)
        if names.shortest or names.longest is not None:
            bound = "" if names.longest is None else names.longest
            expressions.append(f"^[\\s\\S]{{{names.shortest},{bound}}}$")
        if len(expressions) > 1:
            raise UnsupportedSchema(
                path, "more than one pattern, format or length is not supported; join them in one pattern"
            )
        return chosen_properties, {expressions[0]: others}, False

    def _format(self, schema: dict[str, Any]) -> str:
        """Returns a reference to a definition that all strings of a format share, because its expression is long."""
        if schema["pattern"] not in self._formats:
            self._formats[schema["pattern"]] = self._shared(schema)
        return self._formats[schema["pattern"]]

    def _shared(self, schema: dict[str, Any]) -> str:
        """Returns a reference to a new definition of a rewritten schema, so that it is output once."""
        name = f"d{next(self._numbers)}"
        self._definitions[name] = schema
        return _DEFINITION + name


def _references(schema: Schema) -> Iterator[str]:
    """Yields the definitions that apply to every value of a rewritten schema."""
    pending: list[Any] = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"].removeprefix(_DEFINITION)
            pending += value.get("allOf", ())


def _types(value: Mapping[str, Any]) -> set[str]:
    """Returns the JSON types that ``type``, ``const`` and ``enum`` allow; an integer counts as number."""
    found = set(named_types(value))
    for keyword, values in (("const", [value.get("const")]), ("enum", value.get("enum", []))):
        if keyword in value:
            found &= {_type_of(each) for each in values}
    return found


def _both(one: Schema, other: Schema) -> Schema:
    """Returns a schema of the values that fit both."""
    if one is False or other is False:
        return False
    return other if one is True else one if other is True else {"allOf": [one, other]}


def _type_of(value: object) -> str:
    for kind, name in ((bool, "boolean"), (str, "string"), (int | float, "number"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null"


def _string(value: Mapping[str, Any], path: Path, made: dict[str, Any], extra: list[Schema]) -> None:
    for keyword in ("minLength", "maxLength"):
        bound = _count(value, keyword)
        if bound or (keyword == "maxLength" and bound is not None):
            made[keyword] = bound
    format = FORMATS.get(str(value.get("format")))
    expressions: list[str] = []
    for each in patterns.without_wider([each for each in (value.get("pattern"), format) if each is not None]):
        if bounded := patterns.BOUNDED.get(each):
            some: list[Schema] = [
                {"type": "string", "pattern": patterns.to_engine(each), "maxLength": longest}
                for each, longest in bounded
            ]
            if "type" not in value:
                some.append({"type": sorted(TYPES - {"string"})})
            extra.append({"anyOf": some})
        else:
            expressions.append(each if each == format else _pattern(each, (*path, "pattern")))
    if expressions:
        made["pattern"] = expressions[0]
        extra += [{"pattern": each} for each in expressions[1:]]


def _pattern(value: str, path: Path) -> str:
    if value in patterns.BOUNDED:
        return value
    try:
        return patterns.to_engine(value)
    except ValueError as error:
        raise _error(path, error) from None


def _number(value: Mapping[str, Any], path: Path, made: dict[str, Any]) -> None:
    found: dict[str, int | float] = {}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        for keyword in (bound, exclusive):
            if keyword in value and not isinstance(value[keyword], bool):
                found[keyword] = value[keyword]
        if value.get(exclusive) is True and bound in found:  # draft 4 and OpenAPI 3.0
            found[exclusive] = found.pop(bound)
    for keyword, limit in found.items():
        sign = 1 if "inimum" in keyword else -1
        if sign * limit > MAX_NUMBER:
            raise UnsupportedSchema((*path, keyword), f"numbers beyond {MAX_NUMBER} are not supported; lower the bound")
        opposite = [sign * each for name, each in found.items() if ("inimum" in name) == (sign < 0)]
        nearest = _next_decimal(limit, sign) if "exclusive" in keyword and 0 <= sign * limit < _EXACT else None
        if nearest is not None and sign * nearest <= min(opposite, default=MAX_NUMBER):
            inclusive = "minimum" if sign > 0 else "maximum"
            made[inclusive] = sign * max(sign * nearest, sign * made.get(inclusive, nearest))
        elif abs(limit) <= MAX_NUMBER:
            made[keyword] = limit
        else:
            made["minimum" if limit < 0 else "maximum"] = -MAX_NUMBER if limit < 0 else MAX_NUMBER
    if "multipleOf" in value:
        made["multipleOf"] = value["multipleOf"]
    kinds = value.get("type")
    is_listed = bool({"multipleOf", "const", "enum"} & value.keys())
    if "number" in (kinds if isinstance(kinds, list) else [kinds]) and not is_listed:
        # Without a bound llguidance allows exponents: 1e999 is valid JSON, but parsers read it as infinity.
        if not {"minimum", "exclusiveMinimum"} & made.keys():
            made["minimum"] = -MAX_NUMBER
        if not {"maximum", "exclusiveMaximum"} & made.keys():
            made["maximum"] = MAX_NUMBER


def _next_decimal(limit: float, sign: int) -> float:
    """Returns the number next to an excluded one, above it if `sign` is 1 and below it if -1, that readers tell apart.

    They round 4.00000000000000001 to 4. llguidance takes bounds for equal that differ less than these. It refuses 3.9
    if the maximum is 3.9999, so bounds towards 0 stay exclusive: the number of digits keeps values away from them.
    """
    step = 10.0 ** (Decimal(limit).adjusted() + 1 - _EXACT_DIGITS) if limit else _SMALLEST
    return float(f"{limit + sign * step:.{_EXACT_DIGITS}g}")


def _count(value: Mapping[str, Any], keyword: str) -> int | None:
    """Returns the value of a keyword that bounds a count; None if absent. In JSON Schema, 2.0 equals 2."""
    return int(value[keyword]) if keyword in value else None


def _own_names(value: Mapping[str, Any], path: Path) -> _Names:
    """Returns the names that a schema of names allows, apart from its keywords that combine schemas."""
    if "string" not in _types(value):
        return _Names(())
    listed = None
    for keyword in ("const", "enum"):
        if keyword in value:
            values = [value["const"]] if keyword == "const" else value["enum"]
            strings = tuple(dict.fromkeys(each for each in values if isinstance(each, str)))
            listed = strings if listed is None else tuple(each for each in listed if each in set(strings))
    expressions: tuple[str, ...] = ()
    if "pattern" in value:
        _pattern(value["pattern"], (*path, "pattern"))
        if value["pattern"] in patterns.BOUNDED:
            raise UnsupportedSchema((*path, "pattern"), "look-ahead is not supported for names; write it without")
        expressions = (value["pattern"],)
    longest = _count(value, "maxLength")
    return _Names(listed, expressions, _count(value, "minLength") or 0, longest)


def _alternatives(parts: Sequence[_Names], path: Path, *, exclusive: bool) -> tuple[str, ...]:
    """Returns the names that an alternative lists; with `exclusive`, those that exactly one alternative lists."""
    counts: dict[str, int] = {}
    for part in parts:
        if part.listed is None or part.patterns or part.shortest or part.longest is not None:
            raise UnsupportedSchema(path, "alternatives that list no names are not supported; give one enum or pattern")
        for name in part.listed:
            counts[name] = counts.get(name, 0) + 1
    return tuple(name for name, count in counts.items() if count == 1 or not exclusive)


def _fits(name: str, names: _Names, path: Path) -> bool:
    """Returns whether a name has the allowed length and matches the patterns."""
    if len(name) < names.shortest or (names.longest is not None and len(name) > names.longest):
        return False
    return all(_matches(pattern, name, path) for pattern in names.patterns)


def _matches(pattern: str, name: str, path: Path) -> bool:
    found = patterns.matches(pattern, name)
    if found is None:
        raise UnsupportedSchema(path, f"whether {preview(name)} fits its expression is not certain; give an enum")
    return found


def _at_name(
    name: str, properties: Mapping[str, Schema], patterned: Mapping[str, Schema], others: Schema, path: Path
) -> Schema:
    """Returns the schema of the property `name` in an object with these keywords."""
    found = [each for pattern, each in patterned.items() if _matches(pattern, name, path)]
    found = [properties[name], *found] if name in properties else found or [others]
    if False in found:
        return False
    found = [each for each in found if each is not True]
    return True if not found else found[0] if len(found) == 1 else {"allOf": found}

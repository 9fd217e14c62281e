"""Tests of schema rewriting: another library compares the schemas, and unsupported keywords are refused by name."""

import contextlib
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from runtime.structured_output import json_schema
from runtime.structured_output.json_schema import simplify_schema
from runtime.structured_output.keywords import SchemaError, UnsupportedSchema
from runtime.structured_output.patterns import excludes_format, matches, to_engine
from tests.structured_output import json_schemas
from tests.structured_output.client_types import (
    DATE,
    DATE_TIME,
    EMAIL,
    EMAIL_OF_4_6,
    EMOJI,
    HOSTNAME,
    IPV4,
    ISO_DURATION,
    TIME,
    UUID_4,
    UUID_OF_ANY_VERSION,
)

OPEN = {"type": "object"}
LIST = {"type": "array"}


def simplified(schema: Any) -> Any:
    """Returns the rewritten schema. The schema is copied first, so that no objects are shared, as in a request."""
    return simplify_schema(json.loads(json.dumps(schema)))


def accepts(schema: Any, value: Any) -> bool:
    return bool(jsonschema_rs.validator_for(schema).is_valid(value))


def check_random(count: int) -> None:
    rng = random.Random(count)
    rewritten = accepted = 0
    for _ in range(count):
        schema = json_schemas.document(rng)
        try:
            made = simplified(schema)
        except SchemaError:
            continue
        if '"oneOf"' in json.dumps(made) and '"format"' in json.dumps(schema):
            continue  # the engine refuses it, or treats it as anyOf; a stricter alternative would make it accept more
        rewritten += 1
        before = jsonschema_rs.validator_for(schema, validate_formats=False)
        after = jsonschema_rs.Draft202012Validator(made)
        for _ in range(40):
            value = json_schemas.value(rng)
            if after.is_valid(value):
                accepted += 1
                assert before.is_valid(value), (schema, made, value)
    assert rewritten > count / 3
    assert accepted > count


def test_a_rewritten_schema_accepts_nothing_that_the_original_refuses() -> None:
    check_random(600)


@pytest.mark.slow
def test_many_rewritten_schemas_accept_nothing_that_the_originals_refuse() -> None:
    check_random(40_000)


FORBID_NOTHING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (LIST, {"uniqueItems": False}), (LIST, {"maxItems": 1, "uniqueItems": True}), (LIST, {"minItems": 0}),
    (LIST, {"contains": {"type": "string"}, "minContains": 0}), (LIST, {"contains": True, "minContains": 0}),
    (LIST, {"minContains": 3}), (LIST, {"unevaluatedItems": True}), (LIST, {"items": True, "unevaluatedItems": False}),
    (OPEN, {"unevaluatedProperties": True}), (OPEN, {"unevaluatedProperties": {}}),
    (OPEN, {"additionalProperties": True, "unevaluatedProperties": False}), (OPEN, {"additionalProperties": {}}),
    (OPEN, {"propertyNames": True}), (OPEN, {"propertyNames": {"type": "string"}}),
    (OPEN, {"propertyNames": {"type": ["string", "null"], "description": "any", "minLength": 0}}),
    (OPEN, {"propertyNames": {"minimum": 3}}), (OPEN, {"propertyNames": {"anyOf": [{"const": "a"}, {}]}}),
    (OPEN, {"minProperties": 0}), (OPEN, {"dependentRequired": {}}), (OPEN, {"dependentRequired": {"a": []}}),
    (OPEN, {"dependentRequired": {"a": ["b"]}, "required": ["b"]}), (OPEN, {"dependentSchemas": {"a": True}}),
    (OPEN, {"dependencies": {"a": [], "b": {}}}), (OPEN, {"patternProperties": {}}), ({}, {"if": True}),
    ({}, {"if": {"type": "null"}}), ({}, {"if": {"type": "null"}, "then": {}, "else": True}),
    ({}, {"then": {"type": "null"}}), ({}, {"not": False}), ({}, {"not": {"not": {}}}),
    ({}, {"anyOf": [{"type": "null"}, {}]}), ({}, {"allOf": [{}, True]}),
    ({}, {"$comment": "x", "title": "x", "examples": [1], "readOnly": True, "x-y": {"not": {}}}),
    ({}, {"$anchor": "here", "$dynamicAnchor": "there", "$vocabulary": {}, "$recursiveAnchor": True}),
    ({}, {"discriminator": {"propertyName": "kind"}, "nullable": False, "deprecated": True}),
    ({"type": "string"}, {"uniqueItems": True, "propertyNames": {"pattern": "a(?=b)"}, "unevaluatedItems": False}),
    ({"type": "string"}, {"format": "path", "contentEncoding": "base64", "contentMediaType": "text/plain"}),
    ({"type": "string"}, {"minLength": 0, "description": None, "pattern": None}),
    ({"type": "integer"}, {"format": "int64", "pattern": "^(?!a)", "minLength": 3}),
    ({"enum": ["a", "b"]}, {"minItems": 3, "format": "unknown"}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "more"), FORBID_NOTHING, ids=[json.dumps(more) for _, more in FORBID_NOTHING])
def test_keywords_without_effect_are_dropped_at_any_depth(schema: dict[str, Any], more: dict[str, Any]) -> None:
    reduced, fuller = simplified(schema), simplified({**schema, **more})
    assert fuller == {**reduced, **{name: more[name] for name in ("maxItems", "required") if name in more}}
    assert simplified({"properties": {"x": {**schema, **more}}}).keys() <= {"properties"}
    assert "$defs" not in simplified({"items": {"anyOf": [{"type": "null"}, {**schema, **more}]}})


FORMATS = "iri iri-reference uri-template regex path password base64 binary idn-email cidrv4 jwt phone x"


@pytest.mark.parametrize("format", FORMATS.split())
def test_formats_that_the_engine_does_not_check_are_annotations(format: str) -> None:
    assert simplified({"type": "string", "format": format, "maxLength": 3}) == {"type": "string", "maxLength": 3}


def test_bounds_of_numbers_are_those_of_the_engine() -> None:
    unbounded = simplified({"type": ["number", "null"]})
    assert accepts(unbounded, 10**18)
    assert accepts(unbounded, None)
    assert not accepts(unbounded, float("1e300"))
    for schema in (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
        {"type": "number", "minimum": -3.4028234663852886e38, "exclusiveMaximum": 1.7976931348623157e308},
    ):
        assert simplified(schema) == {"type": schema["type"], "minimum": -(10**18), "maximum": 10**18}
    with pytest.raises(SchemaError, match=r"^minimum: numbers beyond"):
        simplified({"minimum": 1e19})


NUMBER = {"type": "number"}
NAMED: list[tuple[Any, Any]] = [
    ({"enum": ["a", "b"]}, {"a", "b"}), ({"type": "string", "enum": ["a", 3, "b"]}, {"a", "b"}),
    ({"const": "a"}, {"a"}), ({"$ref": "#/$defs/names"}, {"c", "d"}),
    ({"allOf": [{"$ref": "#/$defs/names"}]}, {"c", "d"}), ({"anyOf": [{"const": "a"}, {"enum": ["b"]}]}, {"a", "b"}),
    ({"oneOf": [{"const": "a"}, {"enum": ["a", "b"]}]}, {"b"}),
    ({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, {"b"}), ({"enum": ["a", "bb"], "minLength": 2}, {"bb"}),
    ({"enum": ["a", "ba"], "pattern": "^a"}, {"a"}), ({"type": "integer"}, set()),
    ({"$dynamicRef": "#names"}, {"c", "d"}), ({"enum": ["a"], "not": {"type": "integer"}}, {"a"}),
    ({"enum": ["a"], "not": {"minimum": 3}}, set()),
    ({"enum": ["a"], "if": {"type": "string"}, "then": {"const": "a"}}, {"a"}),
    ({"enum": ["a"], "if": {"type": "null"}, "else": {"const": "b"}}, set()),
    ({"enum": ["a"], "if": {"const": "b"}, "then": {"const": "a"}, "else": {"const": "a"}}, {"a"}),
    ({"enum": ["a"], "pattern": None, "minLength": None}, {"a"}), (False, set()),
]  # fmt: skip


@pytest.mark.parametrize(("names", "expected"), NAMED, ids=[json.dumps(names) for names, _ in NAMED])
def test_listed_property_names_become_properties(names: Any, expected: set[str]) -> None:
    schema = {"type": "object", "propertyNames": names, "additionalProperties": NUMBER}
    made = simplified({**schema, "$defs": {"names": {"enum": ["c", "d"], "$dynamicAnchor": "names"}}})
    assert set(made.get("properties", {})) == expected
    assert made["additionalProperties"] is False
    assert all(accepts(made, {name: 1}) and not accepts(made, {name: "x"}) for name in expected)
    assert not accepts(made, {"other": 1})


@pytest.mark.parametrize("pattern", ["", "^", ".*", "^.*", "^[\\s\\S]*$", "^x-"])
def test_patterned_properties_of_all_allowed_names_are_additional_properties(pattern: str) -> None:
    schema = {**OPEN, "patternProperties": {pattern: NUMBER}, "propertyNames": {"type": "string", "pattern": "^x-"}}
    for closed in ({}, {"additionalProperties": False}, {"additionalProperties": {"type": "string"}}):
        made = simplified({**schema, **closed})
        assert accepts(made, {"x-a": 1, "x-\n": 2})
        assert not accepts(made, {"x-a": "x"})
        assert not accepts(made, {"a": 1})
    listed = simplified({**schema, "properties": {"x-a": {"minimum": 1}}, "propertyNames": {"enum": ["x-a", "x-b"]}})
    assert accepts(listed, {"x-a": 1, "x-b": 0})
    for wrong in ({"x-a": 0}, {"x-a": "x"}, {"x-b": "x"}, {"x-c": 1}):
        assert not accepts(listed, wrong)


def test_other_patterned_properties_are_refused_next_to_a_pattern_of_names() -> None:
    for patterned in ({"^y-": NUMBER}, {"": NUMBER, "b": NUMBER}, {"^.*$": NUMBER}):
        schema = {**OPEN, "patternProperties": patterned, "propertyNames": {"pattern": "^x-"}}
        with pytest.raises(UnsupportedSchema, match="propertyNames: is not supported next to patternProperties"):
            simplified(schema)


EXAMPLES = {
    "date": "2024-02-29", "time": "23:59:59.5Z", "date-time": "2023-02-28T00:00:00+01:00", "duration": "P1Y2M3DT4H5M6S",
    "email": "a.b@c-d.org", "ipv4": "10.0.255.1", "ipv6": "2001:db8::1.2.3.4", "hostname": "a-b.c1.org",
    "uuid": "2EB8AA08-aa98-11ea-b4aa-73b441d16380", "uri": "http://a.org:80/b?c=d#e", "json-pointer": "/a~1b",
    "relative-json-pointer": "1/a", "uri-reference": "a:/b",
}  # fmt: skip


WITH_PATTERNS = [  # a format, its expression in published schemas, and a text that matches both
    ("uuid", UUID_OF_ANY_VERSION, "2EB8AA08-aa98-11ea-b4aa-73b441d16380"),
    ("uuid", UUID_4, "2EB8AA08-aa98-41ea-b4aa-73b441d16380"),
    ("email", EMAIL_OF_4_6, "a.b@c-d.org"),
    ("email", EMAIL, "c.d@e-f.org"),
    ("date", DATE, "2024-02-29"),
    ("date-time", DATE_TIME, "2024-02-29T10:00:00Z"),
    ("duration", ISO_DURATION, "P1Y2M3D"),
    ("ipv4", IPV4, "10.0.255.1"),
]


@pytest.mark.parametrize(
    ("format", "pattern", "good"), [*((format, None, good) for format, good in EXAMPLES.items()), *WITH_PATTERNS]
)
def test_formats_hold_for_property_names(format: str, pattern: str | None, good: str) -> None:
    names = {"format": format} | ({"pattern": pattern} if pattern else {})
    schema = {**OPEN, "propertyNames": names, "additionalProperties": NUMBER}
    made, checked = simplified(schema), jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    rng = random.Random(1)
    texts = ["", "not a uuid", good, good[1:], f"{good}1", "a@b-.org", "2023-02-29", "P1Y3D"]
    for _ in range(1500):
        at, size = rng.randrange(len(good)), rng.randint(0, 2)
        added = "".join(rng.choices(good + "0129-:./@~%?#Tz", k=size))
        texts.append(good[:at] + added + good[at + rng.randint(0, 2) :])
    fitting = [text for text in texts if accepts(made, {text: 1})]
    assert good in fitting
    assert len(fitting) > 50
    assert all(checked.is_valid({text: 1}) for text in fitting)
    if not pattern:
        assert simplified({**schema, "propertyNames": {"allOf": [names, names]}}) == made


def test_a_discriminator_is_required_where_alternatives_overlap_without_it() -> None:
    circle = {"properties": {"kind": {"const": "circle", "default": "circle"}}, **OPEN}
    square = {"properties": {"kind": {"const": "square", "default": "square"}, "side": {"type": "integer"}}, **OPEN}
    schema = {"oneOf": [{"$ref": "#/$defs/Circle"}, square], "$defs": {"Circle": circle}}
    assert len(simplified(schema)["oneOf"]) == 2
    assert len(simplified({**schema, "discriminator": {"propertyName": "side"}})["oneOf"]) == 2
    assert len(simplified({**schema, "discriminator": {"propertyName": 1}})["oneOf"]) == 2
    coerced = {"x-guidance": {"coerce_one_of": True}}
    tagged = {**schema, **coerced, "discriminator": {"propertyName": "kind"}}
    assert simplified(tagged) == simplified({**schema, **coerced})
    made = simplified({**schema, "discriminator": {"propertyName": "kind"}})
    assert "oneOf" not in made
    for fitting in ({"kind": "circle"}, {"kind": "square", "side": 1}):
        assert accepts(made, fitting)
    for other in ({}, {"side": 1}, {"kind": "square", "side": "x"}, {"kind": "other"}):
        assert not accepts(made, other)


def test_formats_of_property_names_hold_unless_a_one_of_remains() -> None:
    names = {**OPEN, "propertyNames": {"format": "uuid"}}
    for disjoint in ([names, {"type": "string"}], [names, False]):
        made = simplified({"oneOf": disjoint})
        assert "oneOf" not in made
        assert not accepts(made, {"a": 1})
    made = simplified({"oneOf": [names, True]})
    assert len(made["oneOf"]) == 2
    assert not accepts(made, {"a": 1})  # matches both alternatives if a format is an annotation
    coerced = simplified({"x-guidance": {"coerce_one_of": True}, "oneOf": [names, OPEN]})
    assert "patternProperties" in coerced["oneOf"][0]


HOUR, TIME_OF_DAY = r"(?:[01]\d|2[0-3])", r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
TIMES = [  # a format, an expression, and whether some text matches both
    ("time", TIME, False),
    ("time", rf"^{HOUR}:[0-5]\d$", False),
    ("time", rf"^{TIME_OF_DAY}$", False),
    ("time", rf"^{TIME_OF_DAY}\.\d{{3}}$", False),
    ("time", rf"^{TIME_OF_DAY}\.\d{{3}}Z$", True),
    ("time", rf"^{TIME_OF_DAY}(?:Z|[+-]{HOUR}:[0-5]\d)$", True),
    ("time", rf"^{HOUR}:[0-5]\d", True),
    ("time", "^1[0-2]", True),
    ("time", "(?=a)", True),
    ("time", "[", True),
    ("date-time", rf"{DATE[:-1]}T{HOUR}:[0-5]\dZ$", False),
    ("date-time", rf"{DATE[:-1]}T{TIME_OF_DAY}$", False),
    ("date-time", rf"{DATE[:-1]}T(?:{TIME_OF_DAY}Z|{HOUR}:[0-5]\d)$", True),
    ("date-time", DATE_TIME, True),
    ("date-time", "^2025-", True),
    ("date", TIME, True),
    ("email", "^a$", True),
]


@pytest.mark.parametrize(("format", "pattern", "both"), TIMES)
def test_a_format_of_times_is_an_annotation_next_to_an_expression_of_shorter_times(
    format: str, pattern: str, both: bool
) -> None:
    assert excludes_format(pattern, format) is not both
    if not both:
        reduced = simplified({"pattern": pattern})
        assert simplified({"pattern": pattern, "format": format}) == reduced
        names = {**OPEN, "propertyNames": {"pattern": pattern, "format": format}, "additionalProperties": NUMBER}
        assert list(simplified(names)["patternProperties"]) == [reduced["pattern"]]


@pytest.mark.parametrize(("pattern", "anchor"), [(r"\Aa", "^"), (r"a\Z", "$"), (r"a\z", "$")])
def test_anchors_of_other_dialects_are_refused_with_those_of_ecmascript(pattern: str, anchor: str) -> None:
    with pytest.raises(SchemaError, match=rf"is not an anchor of ECMAScript; write {re.escape(anchor)}$"):
        simplified({"pattern": pattern})


A, B = ({**OPEN, "properties": {name: NUMBER}, "required": [name]} for name in "ab")
COMBINED = {
    "allOf": {"allOf": [A, B]},
    "allOf and properties": {"allOf": [A], "properties": {"b": NUMBER}},
    "a reference": {"$ref": "#/$defs/a", "properties": {"b": NUMBER}},
    "nested": {"allOf": [{"allOf": [B, {"$ref": "#/$defs/a"}]}]},
}


@pytest.mark.parametrize("rest", [False, {"type": "string"}], ids=json.dumps)
@pytest.mark.parametrize("combined", COMBINED)
def test_unevaluated_properties_are_those_that_no_combined_schema_names(combined: str, rest: Any) -> None:
    schema = {**OPEN, **COMBINED[combined], "unevaluatedProperties": rest, "$defs": {"a": A}}
    made = simplified(schema)
    values = [dict(zip("abc", values, strict=True)) for values in itertools.product((1, "x", None), repeat=3)]
    values = [{name: value for name, value in each.items() if value is not None} for each in values]
    assert [accepts(made, each) for each in values] == [accepts(schema, each) for each in values]
    assert accepts(made, {"a": 1, "b": 1})


def test_each_combined_schema_is_read_once_for_unevaluated_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 10 definitions combines the next one twice: 2 ** 10 paths lead to the last."""
    read = Counter[int]()
    keywords = json_schema._Simplifier._keywords

    def counted(self: Any, origin: Any) -> Any:
        read[id(origin)] += 1
        return keywords(self, origin)

    monkeypatch.setattr(json_schema._Simplifier, "_keywords", counted)
    definitions: dict[str, Any] = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(10)}
    definitions["a10"] = A
    schema = {**OPEN, "$ref": "#/$defs/a0", "unevaluatedProperties": False, "$defs": definitions}
    made = simplify_schema(json.loads(json.dumps(schema)))
    assert made["properties"] == {"a": True}
    assert made["additionalProperties"] is False
    assert max(read.values()) < 10


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"not": {"type": "string"}}, "not", "not supported"),
    ({"not": {"required": ["a"]}}, "not", "not supported"),
    ({**LIST, "uniqueItems": True}, "uniqueItems", "not supported"),
    ({**LIST, "contains": {"type": "string"}}, "contains", "not supported"),
    ({**LIST, "allOf": [{}], "unevaluatedItems": False}, "unevaluatedItems", "not supported"),
    ({**OPEN, "anyOf": [{}, OPEN], "unevaluatedProperties": False}, "unevaluatedProperties", "not supported"),
    ({**OPEN, "allOf": [{"patternProperties": {"^a": {}}}], "unevaluatedProperties": False}, "unevaluatedProperties",
     "not supported"),
    ({**OPEN, "propertyNames": {"format": "uuid", "pattern": "^a"}}, "propertyNames", "more than one pattern"),
    ({**OPEN, "dependentRequired": {"a": ["b"]}}, "dependentRequired.a", "not supported"),
    ({**OPEN, "dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas.a", "not supported"),
    ({**OPEN, "dependencies": {"a": ["b"]}}, "dependencies.a", "not supported"),
    ({**OPEN, "properties": {"a": {}}, "minProperties": 1}, "minProperties", "optional"),
    ({**OPEN, "minProperties": 2}, "minProperties", "repeat"),
    ({**OPEN, "propertyNames": {"pattern": "^(?=a)"}}, "propertyNames.pattern", "look-ahead"),
    ({**OPEN, "propertyNames": {"not": {"const": "a"}}}, "propertyNames.not", "not supported"),
    ({**OPEN, "propertyNames": {"if": {"const": "a"}, "then": {"minLength": 2}}}, "propertyNames.if", "not supported"),
    ({**OPEN, "propertyNames": {"$ref": "#/nowhere"}}, "propertyNames.$ref", "names nothing"),
    ({**OPEN, "propertyNames": {"format": "date", "maxLength": 3}}, "propertyNames", "more than one pattern"),
    ({**OPEN, "patternProperties": {"^(?!a)": {}}}, "patternProperties", "look-ahead"),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if", "not supported"),
    ({"if": {"type": "string"}, "else": {"minimum": 2}}, "if", "not supported"),
    ({"type": "string", "pattern": "^(?=a)b"}, "pattern", "look-ahead"),
    ({"type": "string", "pattern": "(?<!a)b"}, "pattern", "look-behind"),
    ({"type": "string", "pattern": r"(a)\1"}, "pattern", "back-reference"),
    ({"type": "string", "pattern": r"\bword"}, "pattern", "word boundary"),
    ({"type": "string", "pattern": "[a"}, "pattern", "bracket"),
    ({"type": "any"}, "type", "not a type"),
    ({"type": "string", "minLength": -1}, "minLength", "whole number"),
    ({"type": "number", "minimum": "1"}, "minimum", "not a number"),
    ({"$ref": "#/nowhere"}, "$ref", "names nothing"),
    ({"$ref": "https://example.com/a.json"}, "$ref", "outside"),
    ({**OPEN, "properties": {"a": 3}}, "properties.a", "not a schema"),
    ({"anyOf": []}, "anyOf", "empty"),
    ({"propertyNames": {"format": 3}}, "propertyNames.format", "not the name of a format"),
    ({"type": "string", "minLength": float("inf")}, "minLength", "whole number"),
    ({"minimum": float("nan")}, "minimum", "not a"),
    ({"propertyNames": {"dependentRequired": {"a": 1}}}, "propertyNames.dependentRequired.a", "not a"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "path", "reason"), REFUSED, ids=[json.dumps(schema) for schema, _, _ in REFUSED])
def test_unsupported_schemas_are_refused_with_their_path(schema: dict[str, Any], path: str, reason: str) -> None:
    definitions = {"$defs": {"a": {"type": "object"}}}
    for outer, before in (
        (schema | definitions, ""),
        ({"properties": {"deep": {"items": schema}}} | definitions, "properties.deep.items."),
        ({"anyOf": [{"type": "null"}, schema]} | definitions, "anyOf.1."),
    ):
        with pytest.raises(SchemaError) as refused:
            simplified(outer)
        assert str(refused.value).startswith(f"{before}{path}: "), str(refused.value)
        assert reason in str(refused.value)


REFERENCES: list[dict[str, Any]] = [
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "string"}}},
    {"$ref": "#/definitions/t", "definitions": {"t": {"type": "string"}}},
    {"$ref": "#/components/schemas/t", "components": {"schemas": {"t": {"type": "string"}}}},
    {"$ref": "#t", "$defs": {"t": {"$anchor": "t", "type": "string"}}},
    {"$dynamicRef": "#t", "$defs": {"t": {"$dynamicAnchor": "t", "type": "string"}}},
    {"$ref": "#t", "$defs": {"t": {"$dynamicAnchor": "t", "type": "string"}}},
    {"$id": "https://e.com/s.json", "$ref": "https://e.com/s.json#/$defs/t", "$defs": {"t": {"type": "string"}}},
    {"$id": "https://e.com/s.json", "$ref": "t.json", "$defs": {"t": {"$id": "t.json", "type": "string"}}},
    {"$id": "urn:x:y", "$ref": "#/$defs/t", "$defs": {"t": {"type": "string"}}},
    {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "string"}}},
    {"allOf": [{"$ref": "#/properties/x"}], "properties": {"x": {"type": "string"}}},
]


REFERRED = {"$defs": {"t": {"type": "string", "nullable": True}}}
NULLABLE: list[tuple[Any, list[Any], list[Any]]] = [  # a schema of OpenAPI 3.0, valid values, and invalid values
    ({"type": "string", "nullable": True}, ["a", None], [1]),
    ({"type": "string", "nullable": False}, ["a"], [None]),
    ({"type": ["string", "integer"], "nullable": True}, ["a", 1, None], [True]),
    ({"type": ["string", "null"], "nullable": True}, ["a", None], [1]),
    ({"type": "null", "nullable": True}, [None], ["a"]),
    ({"type": "integer", "nullable": True, "minimum": 3}, [3, None], [2]),
    ({"type": "string", "nullable": True, "maxLength": 1, "format": "date"}, [None], ["ab"]),
    ({"type": "string", "nullable": True, "enum": ["a", None]}, ["a", None], ["b"]),
    ({"type": "string", "nullable": True, "enum": ["a"]}, ["a"], [None]),
    ({"type": "string", "nullable": True, "enum": [None]}, [None], ["a", ""]),
    ({"type": "string", "nullable": True, "const": None}, [None], ["a"]),
    ({"type": "array", "nullable": True, "items": NUMBER, "maxItems": 1}, [[1], None], [["a"], [1, 2], {}]),
    ({"type": "array", "items": {"type": "object", "nullable": True}}, [[{}, None]], [[1], None]),
    ({**OPEN, "nullable": True, "required": ["a"]}, [{"a": 1}, None], [{}, []]),
    ({**OPEN, "properties": {"a": {"type": "boolean", "nullable": True}}}, [{"a": None}], [{"a": 1}, None]),
    ({**OPEN, "additionalProperties": {"type": "integer", "nullable": True}}, [{"b": None}], [{"b": "c"}]),
    ({"anyOf": [{"type": "string", "nullable": True}, NUMBER]}, ["a", 1, None], [True]),
    ({"oneOf": [{"type": "string", "nullable": True}, NUMBER]}, ["a", 1, None], [True]),
    ({**REFERRED, "$ref": "#/$defs/t"}, ["a", None], [1]),
    ({**REFERRED, "allOf": [{"$ref": "#/$defs/t"}]}, ["a", None], [1]),
    ({"$defs": {"t": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/t"}], "nullable": True}, ["a"], [None]),
    ({"type": "string", "nullable": "true"}, ["a"], [None]),
    ({"$schema": "https://spec.openapis.org/oas/3.0/schema", "type": "string", "nullable": True}, [None], [1]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "nullable": True}, ["a"], [None]),
    ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "string", "nullable": True}, ["a"], [None]),
]  # fmt: skip


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
DEFINED = {**DRAFT_7, "definitions": {"t": {"type": "string"}}}
PAIR = {**DRAFT_7, **LIST, "items": [{"type": "string"}]}
NAMES = {**OPEN, "additionalProperties": NUMBER}
DAY, NO_DAY = "2024-02-29", "2023-02-29"
ACCEPTED: list[tuple[Any, list[Any], list[Any]]] = [  # a schema, valid values, and invalid values
    *((schema, ["text"], [3]) for schema in REFERENCES),
    *(({**OPEN, "properties": {"next": {keyword: "#"}}, "additionalProperties": False}, [{"next": {"next": {}}}],
       [{"next": {"next": 1}}]) for keyword in ("$ref", "$dynamicRef", "$recursiveRef")),
    ({"properties": {"a": {"$ref": "#"}}}, [[[[]]], {"a": {"a": {}}}], []),
    ({"items": {"$ref": "#"}}, [[[[]]], {"a": {"a": {}}}], []),
    ({"anyOf": [{**LIST, "items": {"$ref": "#"}}, OPEN]}, [[[[]]], {"a": {"a": {}}}], [1]),
    ({**PAIR, "additionalItems": NUMBER}, [["a", 1]], [["a", "b"]]),
    ({**PAIR, "additionalItems": False}, [["a"]], [["a", 1]]),
    ({"minimum": 3, "exclusiveMinimum": True}, [4], [3]),
    ({"maximum": 3, "exclusiveMaximum": False}, [3], [4]),
    ({**DEFINED, "$ref": "#/definitions/t", "maxLength": 1, "format": []}, ["long"], [3]),  # draft 7 ignores the others
    ({**NAMES, "propertyNames": {"pattern": "^a"}}, [{"ab": 1}], [{"ab": "x"}, {"ba": 1}]),
    ({**NAMES, "propertyNames": {"minLength": 2, "maxLength": 3}}, [{"éé": 1}], [{"éé": "x"}, {"abcd": 1}]),
    ({**NAMES, "propertyNames": {"type": "string", "nullable": True, "enum": ["a", None]}}, [{"a": 1}], [{"null": 1}]),
    ({**OPEN, "propertyNames": {"enum": [DAY, NO_DAY], "format": "date"}}, [{DAY: 1}], [{NO_DAY: 1}]),
    ({**DRAFT_7, **OPEN, "propertyNames": {"contentEncoding": "base64"}}, [{"YQ==": 1}], [{"a": 1}]),
    ({**DEFINED, "propertyNames": {"$ref": "#/definitions/t", "format": []}}, [{"a": 1}, 3], []),
    ({**NAMES, "properties": {"a": {"type": "string"}, "z": {}}, "propertyNames": {"enum": ["a", "b"]},
      "required": ["b"]}, [{"a": "x", "b": 1}], [{"a": 1, "b": 1}, {"b": 1, "z": 1}, {"a": "x"}]),
]  # fmt: skip
ACCEPTED += NULLABLE


@pytest.mark.parametrize(("schema", "fitting", "others"), ACCEPTED, ids=[json.dumps(each[0]) for each in ACCEPTED])
def test_a_rewritten_schema_accepts_the_same_values(schema: Any, fitting: list[Any], others: list[Any]) -> None:
    made = simplified(schema)
    assert all(accepts(made, value) for value in fitting), made
    assert not any(accepts(made, value) for value in others), made
    if not {"$schema", "$defs"} & schema.keys() and "#" not in json.dumps(schema):
        inside = simplified({"anyOf": [{"items": schema, "minItems": 1, **LIST}]})
        assert all(accepts(inside, [value]) for value in fitting), inside
        assert not any(accepts(inside, [value]) for value in others), inside


def test_listed_names_do_not_multiply_a_schema() -> None:
    names = [f"name{i}" for i in range(1000)]
    large = {"enum": [f"value {i}" for i in range(1000)]}
    schema = {**OPEN, "propertyNames": {"enum": names}, "additionalProperties": large}
    assert len(json.dumps(simplified(schema))) < 3 * len(json.dumps(schema))


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        (r"a.b", ["axb"], ["a\nb", "a\u2028b", "a\rb"]), (r"^[[a&&b]$", ["[", "&"], ["c"]), (r"^{x}$", ["{x}"], ["x"]),
        (r"^[^]$", ["\n", "a"], [""]), (r"^\cA\0$", ["\x01\0"], ["cA"]), (r"^\ud83d\ude00$", ["😀"], ["x"]),
        (r"^[\w-]+\/$", ["a-/"], ["é/"]),
        (EMAIL, ["a@b.co", "a.b+c@d-e.org", "_@a.bc"], [".a@b.co", "a..b@c.de", "a'@b.co", "a@b", "a@b..co"]),
        (ISO_DURATION, ["P1W", "P1Y2M3D", "PT5M", "P1DT2H3.5S"], ["P", "PT", "P1W1D", "P1DT", "1D"]),
    ],
)  # fmt: skip
def test_expressions_match_what_they_match_in_ecmascript(pattern: str, fitting: list[str], others: list[str]) -> None:
    written = to_engine(pattern)
    schema = {"type": "string", "pattern": written}
    assert all(accepts(schema, text) for text in fitting), written
    assert not any(accepts(schema, text) for text in others), written


EMOJIS = "😀1#\u20e3🇫🇷\ufe0f\u200d🏽a"  # includes parts of emoji that are no emoji alone


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.matrix)])
def test_published_expressions_with_lookaround_accept_the_same(count: int) -> None:
    rng = random.Random(3)
    for pattern, letters in ((EMAIL, "a.'@-b"), (ISO_DURATION, "P1YMDTHS.W"), (HOSTNAME, "aB-.9"), (EMOJI, EMOJIS)):
        before = {"type": "string", "pattern": pattern}
        original, rewritten = map(jsonschema_rs.validator_for, (before, simplified(before)))
        samples = ["".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(count)]
        samples += [f"{'a' * 60}.{'b' * n}" + "." * dot for n in range(1, 64) for dot in (0, 1)]
        samples += [".".join(["a" * 61] * 4) + "a" * n + "." * dot for n in range(9) for dot in (0, 1)]
        assert [*map(original.is_valid, samples)] == [*map(rewritten.is_valid, samples)]


KEYWORDS = [
    "$anchor", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef", "$ref", "additionalItems",
    "additionalProperties", "allOf", "anyOf", "const", "contains", "contentEncoding", "contentMediaType", "default",
    "definitions", "dependencies", "dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum",
    "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern",
    "patternProperties", "prefixItems", "properties", "propertyNames", "required", "then", "type",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
]  # fmt: skip
VALUES: list[Any] = [[], {}, ["a"], [1, {}], [{}, 3], 1, -1, 1.5, True, "x", {"a": 1}, {"a": ["b"]}, {"a": [1]}]
Position = tuple[str, Callable[[Any], Any]]
# Where a subschema may be, with the path that an error names. Many have no effect on any value.
POSITIONS: dict[str, Position] = {
    "root": ("", lambda schema: schema),
    "property": ("properties.a.", lambda schema: {"properties": {"a": schema}}),
    "pattern property": ("patternProperties.a.", lambda schema: {"patternProperties": {"a": schema}}),
    "names": ("propertyNames.", lambda schema: {"type": "object", "propertyNames": schema}),
    "nested names": ("propertyNames.propertyNames.", lambda schema: {"propertyNames": {"propertyNames": schema}}),
    "names allOf": ("propertyNames.allOf.1.", lambda schema: {"propertyNames": {"allOf": [{}, schema]}}),
    "names anyOf": ("propertyNames.anyOf.1.", lambda schema: {"propertyNames": {"anyOf": [True, schema]}}),
    "names oneOf": ("propertyNames.oneOf.0.", lambda schema: {"propertyNames": {"oneOf": [schema]}}),
    "names not": ("propertyNames.not.", lambda schema: {"propertyNames": {"not": schema}}),
    "names if": ("propertyNames.if.", lambda schema: {"propertyNames": {"if": schema}}),
    "names then": ("propertyNames.then.", lambda schema: {"propertyNames": {"then": schema}}),
    "names items": ("propertyNames.items.", lambda schema: {"propertyNames": {"items": schema}}),
    "names reference": ("propertyNames.$ref.",
                        lambda schema: {"$defs": {"x": schema}, "propertyNames": {"$ref": "#/$defs/x"}}),
    "items": ("items.", lambda schema: {"type": "array", "items": schema}),
    "prefix items": ("prefixItems.1.", lambda schema: {"prefixItems": [{}, schema]}),
    "items of a string": ("items.", lambda schema: {"type": "string", "items": schema}),
    "contains": ("contains.", lambda schema: {"contains": schema, "minContains": 0}),
    "not": ("not.", lambda schema: {"not": schema}),
    "else": ("else.", lambda schema: {"if": True, "else": schema}),
    "then alone": ("then.", lambda schema: {"then": schema}),
    "anyOf": ("anyOf.1.", lambda schema: {"anyOf": [{}, schema]}),
    "oneOf": ("oneOf.0.", lambda schema: {"oneOf": [schema, {"type": "null"}]}),
    "dependent": ("dependentSchemas.a.", lambda schema: {"dependentSchemas": {"a": schema}}),
    "dependency": ("dependencies.a.", lambda schema: {"dependencies": {"a": schema}}),
    "reference": ("$ref.", lambda schema: {"$ref": "#/$defs/x", "$defs": {"x": schema}}),
}  # fmt: skip


def is_well_typed(keyword: str, value: Any) -> bool:
    """Returns whether some draft allows this value. Definitions are checked only when something references them."""
    if keyword in ("$defs", "definitions"):
        return isinstance(value, dict)
    if keyword in ("contentMediaType", "contentEncoding", "$anchor", "$dynamicAnchor"):
        return isinstance(value, str)
    if keyword in ("items", "prefixItems") and value == []:
        return True
    if isinstance(value, bool) and (keyword == "required" or keyword.startswith("exclusive")):  # drafts 3 and 4
        return True
    draft = "https://json-schema.org/draft/2020-12/schema"
    if keyword in ("items", "additionalItems", "dependencies"):
        draft = "http://json-schema.org/draft-07/schema#"
    if keyword == "$recursiveRef":
        draft = "https://json-schema.org/draft/2019-09/schema"
    return bool(jsonschema_rs.meta.is_valid({"$schema": draft, keyword: value}))


RECURSIVE = {
    "$ref": {"$ref": "#"},
    "properties.a.$ref": {"properties": {"a": {"$ref": "#/properties/a"}}},
    "allOf.0.$ref": {"allOf": [{"$ref": "#"}, {"type": "null"}]},
    "items.$ref": {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
}


@pytest.mark.parametrize("path", RECURSIVE)
def test_a_reference_that_leads_to_itself_is_refused_with_its_path(path: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(f"{path}: refers to itself without a property or an item")):
        simplified(RECURSIVE[path])


@pytest.mark.parametrize("position", POSITIONS)
def test_a_value_of_a_wrong_type_is_refused_with_its_path_in_every_position(position: str) -> None:
    prefix, embed = POSITIONS[position]
    wrong = 0
    for keyword, value, base in itertools.product(KEYWORDS, VALUES, ["integer", "string", None]):
        schema = {keyword: value} if base is None else {"type": base, keyword: value}
        if is_well_typed(keyword, value):
            with contextlib.suppress(SchemaError):
                simplified(embed(schema))
            continue
        wrong += 1
        with pytest.raises(SchemaError, match=f"^{re.escape(prefix + keyword)}[.:]") as refused:
            simplified(embed(schema))
        assert not isinstance(refused.value, UnsupportedSchema)
    assert wrong > 1000


@pytest.mark.parametrize("keyword", [keyword for keyword in KEYWORDS if keyword not in ("const", "type")])
def test_a_keyword_with_the_value_null_is_absent_in_every_position(keyword: str) -> None:
    for _, embed in POSITIONS.values():
        results = []
        for schema in ({"type": "string"}, {"type": "string", keyword: None}):
            try:
                results.append(simplified(embed(schema)))
            except SchemaError as error:
                results.append(str(error))
        assert results[0] == results[1]


def test_names_are_matched_against_expressions() -> None:
    assert matches("^a", "ab") is True
    assert matches("^a", "ba") is False
    assert matches("^a", "é") is None

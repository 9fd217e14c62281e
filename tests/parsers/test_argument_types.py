"""Tests of the values that are read from text by the schema of an argument."""

import json
from typing import Any

import pytest

from runtime.parsers.argument_types import ArgumentTypes, parse_python, with_json_types
from runtime.parsers.formats import Tool

STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "string": STRING, "optional string": {"anyOf": [STRING, NULL]}, "string or null": {"type": ["string", "null"]},
    "nullable string": {"type": "string", "nullable": True}, "string or integer": {"oneOf": [STRING, INTEGER]},
    "all of": {"allOf": [{"description": "a"}, STRING]}, "reference": {"$ref": "#/$defs/name"},
    "texts": {"enum": ["1", "2"]}, "constant": {"const": "007"}, "integer": INTEGER,
    "optional integer": {"anyOf": [INTEGER, NULL]}, "number": {"type": "number"}, "numbers": {"enum": [1, 2.5]},
    "boolean": {"type": "boolean"}, "array": {"type": "array", "items": STRING}, "object": {"type": "object"},
    "to itself": {"$ref": "#/$defs/loop"}, "nowhere": {"$ref": "#/$defs/missing/deeper"}, "anything": {},
}  # fmt: skip
ROOT = {
    "properties": SCHEMAS,
    "$defs": {
        "name": {"allOf": [{"$ref": "#/$defs/text"}]}, "text": STRING, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]},
    },
}  # fmt: skip
CASES: list[tuple[str, str, Any]] = [
    *(("string", text, text) for text in ("12345", "null", "true", " a ", '{"a": 1}', "")),
    *(("optional string", text, text) for text in ("12345", "true", "1e5", "[1]")),
    *((name, text, None) for name in ("optional string", "string or null", "nullable string", "optional integer")
      for text in ("null", "None")),
    *((name, "5", "5") for name in ("string or integer", "all of", "reference", "texts", "string or null")),
    ("constant", "007", "007"),
    *((name, "5.0", 5) for name in ("integer", "optional integer")),
    ("integer", "5", 5), ("integer", "five", "five"), ("integer", "5.5", 5.5), ("integer", "007", "007"),
    *((name, "5.0", 5.0) for name in ("number", "numbers", "anything", "to itself", "nowhere")),
    ("boolean", "True", True), ("boolean", "false", False), ("anything", "None", None), ("anything", "word", "word"),
    ("array", "['x', 'it\\'s', \"y\"]", ["x", "it's", "y"]), ("array", "[1, 2,]", [1, 2]), ("array", "x, y", "x, y"),
    ("object", '{"a": "True, None"}', {"a": "True, None"}),
    ("object", "{'a': True, 'b': None}", {"a": True, "b": None}),
    ("unnamed", "5", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "value"), CASES)
def test_text_is_read_by_the_schema(name: str, text: str, value: Any) -> None:
    found = ArgumentTypes.of_tool("f", [Tool("f", parameters=ROOT)]).of_property(name).read(text)
    assert json.dumps(found) == json.dumps(value)


def test_types_of_other_sdks_get_the_names_of_json() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"type": {"type": "STRING", "enum": ["STRING"]}, "b": {"type": ["dict", "null"]}},
        "anyOf": [{"type": "any"}, True],
        "default": {"type": "STRING"},
        "$defs": {"enum": {"type": "STRING"}},
    }
    assert with_json_types(schema) == {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["STRING"]}, "b": {"type": ["object", "null"]}},
        "anyOf": [{"type": "any"}, True],
        "default": {"type": "STRING"},
        "$defs": {"enum": {"type": "string"}},
    }


@pytest.mark.parametrize("around", ["allOf", "anyOf", "oneOf"])
def test_properties_of_alternatives_are_found(around: str) -> None:
    parameters = {
        around: [{"properties": {"a": STRING}}, {"$ref": "#/$defs/b"}],
        "$defs": {"b": {"properties": {"b": INTEGER}}},
    }
    types = ArgumentTypes([parameters], parameters)
    assert (types.of_property("a").read("1"), types.of_property("b").read("1")) == ("1", 1)
    assert [types.has_property(name) for name in "abc"] == [True, True, False]
    assert ArgumentTypes([], {}).has_property("c")


def test_values_inside_of_arrays_and_maps_have_types() -> None:
    schema = {"additionalProperties": {"items": STRING}}
    assert ArgumentTypes([schema], schema).of_property("any").of_items.is_text


@pytest.mark.parametrize("text", ["", "'a", "{'a' 1}", "True1", "NaN", "[1, 2", "it's"])
def test_other_text_is_neither_json_nor_python(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_python(text)

"""Tests of the bounds of values that a schema does not bound."""

import json
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.structured_output.bounds import MAX_INTEGER, bound_values
from runtime.structured_output.json_schema import MAX_NUMBER

INTEGER = {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
ANY = {"$ref": "#/$defs/any"}


def without_any(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a bounded schema without the definition of bounded values of any type."""
    made = bound_values(schema, 10)
    made.pop("$defs", None)
    return made


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "minLength": 7}, {"type": "string", "minLength": 7}),
        ({"type": "integer"}, INTEGER),
        ({"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER}),
        ({"type": "integer", "multipleOf": 5}, {"type": "integer", "multipleOf": 5}),
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}),
        ({"type": "boolean"}, {"type": "boolean"}),
        ({}, ANY),
        ({"type": "array"}, {"type": "array", "maxItems": 10, "items": ANY}),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 20},
         {"type": "array", "items": INTEGER, "minItems": 20, "maxItems": 20}),
        ({"type": "object"}, {"type": "object", "additionalProperties": ANY}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
         {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": False}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"anyOf": [INTEGER, {"type": "null"}]}),
        ({"allOf": [{"type": "object", "required": ["a"]}, {"type": "object"}]},
         {"allOf": [{"type": "object", "required": ["a"]}, {"type": "object"}]}),
        ({"allOf": [{"type": "array"}, {"maxItems": 700}]},
         {"allOf": [{"type": "array", "maxItems": 700}, {"maxItems": 700}]}),
        ({"allOf": [{"properties": {"a": {}}}, {"anyOf": [{"properties": {"a": {}}}, {"type": "null"}]}]},
         {"allOf": [{"properties": {"a": {}}}, {"anyOf": [{"properties": {"a": {}}}, {"type": "null"}]}]}),
    ],
)  # fmt: skip
def test_bounds_of_schemas(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert without_any(schema) == expected


def test_bounds_hold_at_each_level() -> None:
    made = bound_values({}, 10)
    assert made["$defs"]["any"] == {
        "maxItems": 10, "items": ANY, "additionalProperties": ANY,
        "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER,
    }  # fmt: skip


def test_no_bounds_of_lengths() -> None:
    schema = {"type": ["string", "array"], "items": {"type": "null"}}
    assert bound_values(schema, 0) == schema


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {}])
def test_answers_keep_the_bounds_of_a_request(schema: dict[str, Any]) -> None:
    limits = {"structured_max_length": 5, "structured_max_items": 2}
    with LLM(device="cpu") as llm:
        params = SamplingParams(
            structured_outputs={"json": {"type": "array", "items": schema, "minItems": 2}},
            max_tokens=400, temperature=2.0, seed=1, n=8, structured_max_run=0, **limits,
        )  # fmt: skip
        (out,) = llm.generate(["Hello"], params)
    for choice in out.choices:
        assert choice.finish_reason == "stop"
        check(choice.text or "")


def check(text: str) -> None:
    def visit(value: object) -> None:
        if isinstance(value, str):
            assert len(value) < 5 + 16, "the token that fills a string may be long"
        elif isinstance(value, list):
            assert len(value) <= 2
            for each in value:
                visit(each)
        elif isinstance(value, dict):
            for each in value.values():
                visit(each)
        elif isinstance(value, int | float):
            assert abs(value) <= MAX_INTEGER

    visit(json.loads(text))

"""The shortest JSON text of a schema of `forms`, by recursion over the schema: a reference for witnesses."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.structured_output import forms

Count = Callable[[str], int]  # number of tokens of a text


def shortest(schema: dict[str, Any], count: Count) -> str:
    """Returns the text of a value with the fewest tokens, among the candidates of each part."""
    return min(_candidates(schema, count), key=count)


def _candidates(schema: dict[str, Any], count: Count) -> Iterator[str]:
    match schema:
        case {"anyOf": some}:
            for each in some:
                yield shortest(each, count)
        case {"enum": values}:
            yield from map(_text, values)
        case {"const": value}:
            yield _text(value)
        case {"type": "object"}:
            parts = [f"{_text(name)}: {shortest(schema['properties'][name], count)}" for name in _required(schema)]
            yield "{" + ", ".join(parts) + "}"
        case {"type": "array"}:
            item = shortest(schema["items"], count) if schema["minItems"] else ""
            yield "[" + ", ".join([item] * schema["minItems"]) + "]"
        case {"pattern": pattern}:
            yield _text(forms.PATTERNS[pattern])
        case {"type": "string"}:
            for filler in "athen":
                yield _text(filler * schema["minLength"])
            yield _text("the"[: schema["minLength"]])
        case {"type": "integer"}:
            yield from map(str, range(schema["minimum"], schema["maximum"] + 1))
        case {"type": "number"}:
            yield from map(str, range(schema["exclusiveMinimum"] + 1, schema["maximum"] + 1))
        case {"type": "boolean"}:
            yield from ("true", "false")
        case _:
            yield from ("null", "true", "false")


def _required(schema: dict[str, Any]) -> list[str]:
    return [name for name in schema["properties"] if name in schema["required"]]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

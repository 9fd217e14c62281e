"""Random JSON schemas with many keywords and dialects, and values that nearly match them."""

import json
import random
from typing import Any

NAMES = ("a", "b", "ab", "bc", "x1", "é")
TEXTS = ("", "a", "b", "ab", "abc", "x1", "2024-02-29", "a\nb")
PATTERNS = ("", "^a", "b$", "^[a-c]+$", "a.b", r"^\w*$", "^(?:a|b)*$", r"^a\/?b")
ALWAYS = (True, {}, {"description": "anything"})
DIALECTS = (
    None, None, "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
)  # fmt: skip


def document(rng: random.Random) -> dict[str, Any]:
    """Returns a schema with definitions that it may reference."""
    dialect = rng.choice(DIALECTS)
    made: dict[str, Any] = {**schema(rng, 0)}
    made["$defs"] = {
        "one": {"$anchor": "one", **_without_loops(schema(rng, 2))},
        "two": _without_loops(schema(rng, 2)),
        "names": {"type": "string", "enum": rng.sample(NAMES, 3)},
    }
    if dialect is not None:
        made = {"$schema": dialect, **made}
    if "draft-07" in str(dialect):  # draft 7 has no anchors
        made = json.loads(json.dumps(made).replace('"#one"', '"#/$defs/one"'))
    return made


def _without_loops(made: dict[str, Any]) -> dict[str, Any]:
    """Returns a definition that references only the last definition, because a reference to itself has no meaning."""
    text = json.dumps(made)
    for reference in ("#one", "#/$defs/one", "#/$defs/two"):
        text = text.replace(f'"{reference}"', '"#/$defs/names"')
    found: dict[str, Any] = json.loads(text)
    return found


def schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_text, _number, _enum, _reference]
    if depth < 3:
        kinds += [_object, _object, _array, _combined, _object]
    made: dict[str, Any] = {}
    for _ in range(1 if rng.random() < 0.8 else 2):
        made |= rng.choice(kinds)(rng, depth)
    if rng.random() < 0.2:
        made |= rng.choice(
            [
                {"title": "x"}, {"default": 1}, {"deprecated": True}, {"format": "path"}, {"if": True}, {"not": False},
                {"x-note": [1]}, {"contentEncoding": "base64"}, {"then": {"type": "null"}}, {"not": {"not": {}}},
            ]
        )  # fmt: skip
    if rng.random() < 0.3:
        made.pop("type", None)
    return made


def _text(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.4:
        made["pattern"] = rng.choice(PATTERNS)
    if rng.random() < 0.4:
        made |= {"minLength": rng.randint(0, 2), "maxLength": rng.choice([2, 3, 3.0])}
    if rng.random() < 0.3:
        made["format"] = rng.choice(["uri-reference", "json-pointer", "password", "base64", "made-up"])
    return made


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": rng.choice(["integer", "number", ["number", "null"]])}
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        if rng.random() < 0.25:
            made[keyword] = rng.randint(1, 4)
    return made


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    values = rng.sample([1, 2.5, "a", "ab", None, True, [1], {"a": 1}], rng.randint(1, 4))
    return {"enum": values} if rng.random() < 0.7 else {"const": values[0]}


def _reference(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"$ref": rng.choice(["#/$defs/one", "#/$defs/two", "#/$defs/names", "#one"])}


def _combined(rng: random.Random, depth: int) -> dict[str, Any]:
    keyword = rng.choice(["allOf", "anyOf", "oneOf"])
    made: dict[str, Any] = {keyword: [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if rng.random() < 0.3:
        made[keyword].append(rng.choice([True, False, {}]))
    if rng.random() < 0.3:
        made |= {"if": rng.choice([True, False, {}]), "then": schema(rng, depth + 1), "else": schema(rng, depth + 1)}
    if rng.random() < 0.1:
        made["not"] = rng.choice([False, {"not": True}, {"type": "null"}, {}])
    return made


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array"}
    choices = {
        "items": lambda: rng.choice([schema(rng, depth + 1), True, False]),
        "prefixItems": lambda: [schema(rng, depth + 1) for _ in range(2)],
        "minItems": lambda: rng.choice([0, 1, 1.0]),
        "maxItems": lambda: rng.randint(1, 3),
        "uniqueItems": lambda: rng.random() < 0.1,
        "contains": lambda: rng.choice([True, {}, {"type": "string"}]),
        "minContains": lambda: rng.randint(0, 2),
        "maxContains": lambda: rng.randint(1, 3),
        "unevaluatedItems": lambda: rng.choice([True, {}, False]),
    }
    for keyword in choices:
        if rng.random() < (0.6 if keyword == "items" else 0.2):
            made[keyword] = choices[keyword]()
    return made


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": rng.choice(["object", "object", ["object", "string"]])}
    choices = {
        "properties": lambda: {name: schema(rng, depth + 1) for name in rng.sample(NAMES, 2)},
        "required": lambda: rng.sample(NAMES, rng.randint(0, 2)),
        "additionalProperties": lambda: rng.choice([schema(rng, depth + 1), True, False]),
        "patternProperties": lambda: {rng.choice(PATTERNS): schema(rng, depth + 1)},
        "propertyNames": lambda: _names(rng),
        "minProperties": lambda: rng.randint(0, 2),
        "maxProperties": lambda: rng.randint(1, 4),
        "unevaluatedProperties": lambda: rng.choice([True, {}, False]),
        "dependentRequired": lambda: rng.choice([{}, {"a": []}, {"a": ["a"]}, {"a": ["b"]}]),
        "dependentSchemas": lambda: rng.choice([{}, {"a": True}, {"a": {}}]),
        "dependencies": lambda: rng.choice([{}, {"a": []}, {"b": {}}]),
    }
    for keyword in choices:
        if rng.random() < {"properties": 0.7, "propertyNames": 0.3}.get(keyword, 0.2):
            made[keyword] = choices[keyword]()
    return made


def _names(rng: random.Random) -> Any:
    listed = {"enum": rng.sample(NAMES, 3)}
    return rng.choice(
        [
            True, {"type": "string"}, {"type": "string", **listed}, {"const": "a"}, {"pattern": rng.choice(PATTERNS)},
            {"$ref": "#/$defs/names"}, {"anyOf": [{"const": "a"}, {"const": "b"}]}, {"minLength": 2}, {"maxLength": 1},
            {"oneOf": [listed, {"const": "a"}]}, {"allOf": [listed, {"enum": [*NAMES[:2], 1]}]}, {"format": "uuid"},
            {**listed, "pattern": "^a"}, {**listed, "maxLength": 1}, {"type": "integer"}, False,
        ]
    )  # fmt: skip


def value(rng: random.Random, depth: int = 0) -> Any:
    """Returns a random value with the names and texts that occur in the schemas."""
    if depth < 2 and rng.random() < 0.6:
        if rng.random() < 0.7:
            return {name: value(rng, depth + 1) for name in rng.sample(NAMES, rng.randint(0, 3))}
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return rng.choice([None, True, 1, 2, 3, 4, 2.5, -1, *TEXTS])

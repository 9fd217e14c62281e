"""Random schemas and regular expressions of the kinds that clients send."""

import random
from typing import Any

PATTERNS = {"^[a-z]{2,4}$": "at", "^[A-Z][a-z]+-[0-9]{2}$": "At-00", "^(yes|no)$": "no"}  # each with a short text
NAMES = ("name", "age", "city", "id", "tags", "price", "unit", "ok", "when", "note")


def schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = [_text, _integer, _number, _enum, _const, _flag, _null]
    if depth < 3:
        kinds += [_object, _array, _either] * 2
    made: dict[str, Any] = (_object if not depth else rng.choice(kinds))(rng, depth)
    return made


def _text(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        return {"type": "string", "pattern": rng.choice(list(PATTERNS))}
    low = rng.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 6)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-5, 5)
    return {"type": "number", "exclusiveMinimum": low, "maximum": low + rng.randint(1, 9)}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample([1, 2.5, "red", "green", None, True, 'a "quote"', "é"], rng.randint(1, 4))}


def _const(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice([0, "fixed", False, ["x", 1]])}


def _flag(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _null(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": ["null", "boolean"]}


def _either(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 2)
    return {"type": "array", "items": schema(rng, depth + 1), "minItems": low, "maxItems": low + rng.randint(0, 2)}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: schema(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def regex(rng: random.Random, depth: int = 0) -> str:
    """Returns a random expression that has the same meaning in Python's ``re``."""
    if depth > 2 or rng.random() < 0.3:
        return (
            rng.choice(["a", "b", r"\d", "[a-f]", "[^x\n]", r"\.", "-", "/", " ", "Ab", r"\w"])
            .replace(r"\w", "[A-Za-z0-9_]")
            .replace(r"\d", "[0-9]")
        )
    kind = rng.randrange(3)
    if kind == 0:
        return "".join(regex(rng, depth + 1) for _ in range(rng.randint(1, 3)))
    if kind == 1:
        return "(" + "|".join(regex(rng, depth + 1) for _ in range(rng.randint(2, 3))) + ")"
    return f"({regex(rng, depth + 1)})" + rng.choice(["?", "{2}", "{1,3}", "{0,2}"])

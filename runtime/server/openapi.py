"""How the OpenAPI describes ``decoding``: by what the engine's rules and strategy declare."""

from __future__ import annotations

from typing import Any

from runtime.engine.description import Field
from runtime.engine.io import EngineInfo

_TYPES = {"number": "number", "integer": "integer", "flag": "boolean", "choice": "string"}


def decoding_schema(info: EngineInfo | None) -> dict[str, Any]:
    """JSON schema of a request's ``decoding``; any object until an engine is known."""
    schema: dict[str, Any] = {"type": "object", "title": "Decoding", "description": "How blocks are denoised."}
    if info is None:
        return schema
    modes = dict.fromkeys(mode for rule in info.rules for mode in rule.modes)
    properties = {
        "mode": _nullable({"enum": list(modes)}, "values of several fields in one word"),
        "algorithm": _nullable({"enum": [rule.key for rule in info.rules]}, "the acceptance rule"),
        "block_length": _nullable({"type": "integer", "minimum": 1}, "the server's block size, nothing else"),
        "force_single_batch": _nullable({"type": "boolean"}, "the request has its forwards to itself"),
    }
    for name, (field, rules) in _declared(info).items():
        outer, _, inner = name.rpartition(".")
        place = properties
        if outer:
            whole = {"type": "object", "properties": {}, "additionalProperties": False}
            nested = properties.setdefault(outer, _nullable(whole, f"numbers of the {rules[0]} rule"))
            place = nested["anyOf"][0]["properties"]
        place[inner] = _nullable(_kind(field), field.help + (f" ({', '.join(rules)})" if rules else ""))
    return schema | {"properties": properties, "additionalProperties": False}


def _declared(info: EngineInfo) -> dict[str, tuple[Field, list[str]]]:
    """Each field by its name, with the rules that read it; the strategy's with none."""
    found: dict[str, tuple[Field, list[str]]] = {field.name: (field, []) for field in info.strategy_fields}
    for rule in info.rules:
        for field in rule.fields:
            found.setdefault(field.name, (field, []))[1].append(rule.key)
    return found


def _nullable(kind: dict[str, Any], description: str) -> dict[str, Any]:
    return {"anyOf": [kind, {"type": "null"}], "description": description}


def _kind(field: Field) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": _TYPES[field.kind]}
    if field.kind == "choice":
        kind["enum"] = list(field.choices)
    elif field.kind != "flag":
        kind["exclusiveMinimum" if field.above_low else "minimum"] = field.low
        if field.high is not None:
            kind["maximum"] = field.high
    return kind

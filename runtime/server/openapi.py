"""What the OpenAPI says of fields, by their declarations, of ``decoding``, by the engine's, and of keys."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from runtime.request.decoding import engine_fields
from runtime.request.engine_messages import EngineInfo
from runtime.request.field_spec import Field, Limits

_TYPES = {"number": "number", "integer": "integer", "flag": "boolean", "choice": "string", "text": "string"}


def decoding_schema(info: EngineInfo | None) -> dict[str, Any]:
    """JSON schema of a request's ``decoding``; any object until an engine is known."""
    schema: dict[str, Any] = {"type": "object", "title": "Decoding", "description": "How blocks are denoised."}
    if info is None:
        return schema
    properties = {field.name: _nullable(values_schema(field), field.help) for field in engine_fields(info)}
    for name, (field, rules) in _declared(info).items():
        outer, _, inner = name.rpartition(".")
        target = properties
        if outer:
            nested_object = {"type": "object", "properties": {}, "additionalProperties": False}
            nested = properties.setdefault(outer, _nullable(nested_object, f"numbers of the {rules[0]} rule"))
            target = nested["anyOf"][0]["properties"]
        target[inner] = _nullable(values_schema(field), field.help + (f" ({', '.join(rules)})" if rules else ""))
        target[inner]["x-unmask-rules"] = rules
    return schema | {"properties": properties, "additionalProperties": False}


def secure(schema: dict[str, Any], open_paths: Collection[str]) -> None:
    """Say in the whole document which keys its routes want; those of `open_paths` want none."""
    schema["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "one of the server's keys"},
        "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "the same, as Anthropic's"},
    }
    schema["security"] = [{"bearer": []}, {"header": []}]
    for path, methods in schema["paths"].items():
        if path in open_paths:
            for operation in methods.values():
                operation["security"] = []


def _declared(info: EngineInfo) -> dict[str, tuple[Field, list[str]]]:
    """Each field by its name, with the rules that read it; the strategy's with none."""
    found: dict[str, tuple[Field, list[str]]] = {field.name: (field, []) for field in info.strategy_fields}
    for rule in info.algorithms:
        for field in rule.fields:
            found.setdefault(field.name, (field, []))[1].append(rule.key)
    return found


def _nullable(kind: dict[str, Any], description: str) -> dict[str, Any]:
    return {"anyOf": [kind, {"type": "null"}], "description": description}


def values_schema(limits: Limits) -> dict[str, Any]:
    """JSON schema of the values that a declaration lets through; not of texts and objects."""
    schema: dict[str, Any] = {"type": _TYPES[limits.kind]}
    if limits.kind == "choice":
        schema["enum"] = list(limits.choices)
    elif limits.kind == "text":
        schema["maxLength"] = limits.high
    elif limits.kind != "flag":
        schema["exclusiveMinimum" if limits.above_low else "minimum"] = limits.low
        if limits.high is not None:
            schema["maximum"] = limits.high
    return schema

"""The OpenAPI document: schemas of types, `decoding` and API keys. `serving/routes.py` has the docs of each route."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import TypeAdapter

from runtime.request.decoding import engine_fields
from runtime.request.engine_messages import EngineInfo
from runtime.request.field_spec import Field
from runtime.server.serving.generation import values_schema
from runtime.server.serving.routes import REFERENCED

DECODING = "#/components/schemas/Decoding"


def decoding_schema(info: EngineInfo | None) -> dict[str, Any]:
    """JSON schema of a request's ``decoding``; any object until an engine is known."""
    schema: dict[str, Any] = {"type": "object", "title": "Decoding", "description": "How blocks are denoised."}
    if info is None:
        return schema
    defaults = info.defaults().values
    properties = {
        field.name: _nullable(values_schema(field), field.help)
        | ({} if field.default == "" else {"default": field.default})
        for field in engine_fields(info)
    }
    for name, (field, rules) in _declared(info).items():
        outer, _, inner = name.rpartition(".")
        target = properties
        if outer:
            nested_object = {"type": "object", "properties": {}, "additionalProperties": False}
            nested = properties.setdefault(outer, _nullable(nested_object, f"numbers of the {rules[0]} rule"))
            target = nested["anyOf"][0]["properties"]
        target[inner] = _nullable(values_schema(field), field.help + (f" ({', '.join(rules)})" if rules else ""))
        target[inner] |= {"default": defaults.get(name, field.default), "x-unmask-rules": rules}
    return schema | {"properties": properties, "additionalProperties": False}


def set_sampling_defaults(schemas: dict[str, Any], info: EngineInfo) -> None:
    """Sets the defaults of sampling in the schemas of requests, whose fields have one, unlike those of responses."""
    for schema in schemas.values():
        for name, value in info.sampling.items():
            field = schema.get("properties", {}).get(name, {})
            if "default" in field:
                field["default"] = value


def request_defaults(info: EngineInfo) -> dict[str, Any]:
    """Returns the model's length, and the values of requests that set none: sampling, `decoding`, and per algorithm its
    fields and modes."""
    declared = (*engine_fields(info), *info.strategy_fields)
    return {
        "max_model_len": info.max_model_len,
        "max_tokens": info.default_max_tokens,
        **info.sampling,
        "decoding": {field.name: field.default for field in declared if field.default != ""},
        "algorithms": {
            algorithm.key: {
                "fields": {field.name: field.default for field in algorithm.fields},
                "modes": algorithm.modes,
            }
            for algorithm in info.algorithms
        },
    }


def secure(schema: dict[str, Any], open_paths: Collection[str]) -> None:
    """Adds the required keys to all routes but those of `open_paths`."""
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
    """Returns fields by name, each with the algorithms that read it; fields of the strategy have none."""
    found: dict[str, tuple[Field, list[str]]] = {field.name: (field, []) for field in info.strategy_fields}
    for rule in info.algorithms:
        for field in rule.fields:
            found.setdefault(field.name, (field, []))[1].append(rule.key)
    return found


def _nullable(kind: dict[str, Any], description: str) -> dict[str, Any]:
    return {"anyOf": [kind, {"type": "null"}], "description": description}


def type_schemas() -> dict[str, Any]:
    """Returns the schemas of the bodies, responses and events of all routes, and of what they consist of.

    Fields with a constant value get a generated description.
    """
    kinds: list[Any] = [(name, "validation", TypeAdapter(kind)) for name, kind in sorted(REFERENCED.items())]
    _, found = TypeAdapter.json_schemas(kinds, ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = found["$defs"]
    for schema in schemas.values():
        properties = schema.get("properties", {})
        for field in properties.values():
            if "const" in field or field.get("type") == "null":
                field.setdefault("description", f"always `{field['const']}`" if "const" in field else "always null")
        if "decoding" in properties:
            properties["decoding"]["anyOf"] = [{"$ref": DECODING}, {"type": "null"}]
    return schemas

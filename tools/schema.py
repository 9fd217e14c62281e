"""A pydantic model as a structural OpenAPI v3 schema, as a CustomResourceDefinition wants it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_ORDER = ("description", "type", "format", "enum", "default", "required", "properties")


def structural(model: type[BaseModel]) -> Schema:
    """The schema of `model`: no references, no null, no closed objects; what may be absent is not required.

    Defaults of whole objects and lists are left out, so that the API server writes only the scalars of what is there.
    """
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    node = _resolve(node, definitions)
    out: Schema = {}
    for key, value in node.items():
        match key:
            case "title" | "$defs":
                continue
            case "default" if value is None or isinstance(value, dict | list):
                continue
            case "const":
                out["enum"] = [value]
            case "exclusiveMinimum":
                out |= {"minimum": value, "exclusiveMinimum": True}
            case "properties":
                out[key] = {name: _convert(child, definitions) for name, child in value.items()}
            case "items":
                out[key] = _convert(value, definitions)
            case "additionalProperties":
                if isinstance(value, dict):
                    out[key] = _convert(value, definitions)
            case _ if key.startswith("x-") and not key.startswith("x-kubernetes-"):
                continue
            case "description":
                out[key] = " ".join(value.split())
            case _:
                out[key] = value
    return {key: out[key] for key in (*_ORDER, *sorted(out)) if key in out}


def _resolve(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """The node itself in place of a reference, of its "or null" and of its wrappers; its own words go first."""
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _resolve({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _resolve({**_resolve(options[0], definitions), **rest}, definitions)
    return node

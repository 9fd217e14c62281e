"""A pydantic model as a structural OpenAPI v3 schema, as a CustomResourceDefinition wants it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tools.rules import RULES
from unmask_operator.api.base import STORED
from unmask_operator.api.nulls import SELECTOR

Schema = dict[str, Any]

_ORDER = ("description", "type", "format", "enum", "default", "required", "properties")


def structural(model: type[BaseModel], *, defaults: bool = False, nullable: bool = False) -> Schema:
    """The schema of `model`: no references, no closed objects; what may be absent is not required.

    With `nullable`, what may be absent may also be null. On a create request the API server drops nulls by itself, but
    with server-side apply it refuses a null that the schema does not permit. Values with a default of the schema need
    no `nullable`: the API server replaces their nulls with the default.

    The API server writes a default of the schema into every object, where no later version can improve it. So a default
    is the operator's own, told in the description, unless the field is STORED. With `defaults` every scalar one stands
    as such, for the documentation.
    """
    schema = model.model_json_schema(by_alias=True)
    sections = {**schema.get("$defs", {}), model.__name__: schema}
    for section, rules in RULES.items():
        if section.__name__ in sections:
            sections[section.__name__]["x-kubernetes-validations"] = [rule.schema() for rule in rules]
    converted = _convert(schema, sections, defaults)
    if nullable:
        _allow_nulls(converted)
    return converted


def _allow_nulls(node: Schema) -> None:
    """Marks the optional members of a schema, and the values of its maps, as nullable."""
    for name, child in node.get("properties", {}).items():
        if name != SELECTOR:
            _allow_nulls(child)
        if name not in node.get("required", ()) and "default" not in child:
            _mark_nullable(child)
    if "items" in node:
        _allow_nulls(node["items"])
    if "additionalProperties" in node:
        _mark_nullable(node["additionalProperties"])


def _mark_nullable(node: Schema) -> None:
    """The API server compares null with an `enum` beside `nullable`, and not with one inside `allOf`."""
    if (values := node.pop("enum", None)) is not None:
        node |= {"maxLength": max(map(len, values)), "allOf": [{"enum": values}]}
        if "description" in node:  # `kubectl explain` shows an enum only where it is not inside allOf
            node["description"] += f" One of {', '.join(values)}."
    node["nullable"] = True


def _convert(node: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    node = _resolve(node, definitions)
    out: Schema = {}
    if not defaults and not node.get(STORED) and isinstance(value := node.pop("default", None), str | int):
        shown = str(value).lower() if isinstance(value, bool) else value
        node["description"] = f"{node['description']} Default: {shown}."
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
                out[key] = {name: _convert(child, definitions, defaults) for name, child in value.items()}
            case "items":
                out[key] = _convert(value, definitions, defaults)
            case "additionalProperties":
                if isinstance(value, dict):
                    out[key] = _convert(value, definitions, defaults)
            case _ if key.startswith("x-") and not key.startswith("x-kubernetes-"):
                continue
            case "description":
                out[key] = " ".join(value.split())
            case _:
                out[key] = value
    return {key: out[key] for key in (*_ORDER, *sorted(out)) if key in out}


def _resolve(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """A copy of the node itself in place of a reference, its "or null" and its wrappers; its own words go first."""
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _resolve({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _resolve({**_resolve(options[0], definitions), **rest}, definitions)
    return dict(node)

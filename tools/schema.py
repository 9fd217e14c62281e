"""Converts a pydantic model to a structural OpenAPI v3 schema for a CustomResourceDefinition."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tools.rules import RULES
from unmask_operator.api.base import FLAG, STORED
from unmask_operator.api.service import SELECTOR

Schema = dict[str, Any]

_ORDER = ("description", "type", "format", "enum", "default", "required", "properties")


def structural(model: type[BaseModel], *, defaults: bool = False, nullable: bool = False) -> Schema:
    """Returns the structural schema of `model`, without references and closed objects.

    The API server stores schema defaults in every object, so a later version cannot change them. Defaults are therefore
    part of the description and applied by the operator, unless the field is STORED.

    Args:
        model: the model.
        defaults: whether to include every scalar default as such, for the documentation.
        nullable: whether optional fields accept null. On create, the API server drops nulls itself; with server-side
            apply, it rejects a null that the schema does not allow. A field with a schema default needs no `nullable`,
            since the API server replaces null by the default.
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
    """Marks the optional members of a schema and the values of its maps as nullable."""
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
    """Marks a node as nullable. Moves `enum` into `allOf`, where the API server does not compare null with it."""
    if (values := node.pop("enum", None)) is not None:
        node |= {"maxLength": max(map(len, values)), "allOf": [{"enum": values}]}
        if "description" in node:  # `kubectl explain` shows an enum only where it is not inside allOf
            node["description"] += f" One of {', '.join(values)}."
    node["nullable"] = True


def _convert(node: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    node = _resolve(node, definitions)
    out: Schema = {}
    if flag := node.get(FLAG):
        node["description"] += f" (--{flag})"
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
    """Copies a node with its reference and its "or null" resolved. Members of the node take precedence."""
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _resolve({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _resolve({**_resolve(options[0], definitions), **rest}, definitions)
    return dict(node)

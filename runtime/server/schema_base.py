"""Base of request models: strict types, unsupported fields, and the names of ignored fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from runtime.request.validation import integral


def integrals(value: Any) -> Any:
    """Replaces the floats in a list that are integers; other values stay."""
    return [*map(integral, value)] if isinstance(value, list) and float in set(map(type, value)) else value


MAX_IGNORED = 16  # ignored fields that an answer names
MAX_NAME = 64  # characters of one
# JSON knows numbers alone: clients in languages without integers write 20.0 for 20.
Integer = Annotated[int, BeforeValidator(integral)]
Integers = Annotated[list[int], Field(fail_fast=True), BeforeValidator(integrals)]
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.-]")


class RequestModel(BaseModel):
    """Fields that it does not know are kept aside, for `ignored` to name: clients send many that change nothing."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    def unsupported_kind(self) -> str | None:
        """Name of what this part of a body is, if the server ignores it as a unit, such as a hosted tool; else None."""
        return None

    def ignored_paths(self) -> Iterator[str]:
        """Paths, relative to this object, of non-null values in it that the server ignores."""
        for name, value in (self.model_extra or {}).items():
            if value is not None:
                yield name


def api_field(description: str, *examples: Any, **limits: Any) -> Any:
    """What the OpenAPI says of a field; `limits` are pydantic's."""
    return Field(description=description, examples=list(examples) or None, **limits)


class UnsupportedField:
    """Marks a field as unsupported: only null and neutral values are valid."""

    def __init__(self, *neutral: Any, why: str = "is not supported; leave it out") -> None:
        """`why`: what a refusal says after the field's name."""
        self.neutral = neutral
        self.why = why

    def check(self, value: Any) -> Any:
        # a bool equals an int in Python, so the types count too
        if value is not None and not any(
            value == v and isinstance(value, bool) == isinstance(v, bool) for v in self.neutral
        ):
            raise PydanticCustomError("not_built", "{why}", {"why": self.why})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        example = self.neutral[0] if self.neutral else None
        kinds = [*map(_only, self.neutral), {"type": "null"}]
        return {"anyOf": kinds, "description": f"any other value {self.why}", "examples": [example]}


class AnyOfUnion:
    """Of a union whose arms a function chooses: its JSON schema is `anyOf`, as a value may fit several of them."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        return {**{name: value for name, value in described.items() if name != "oneOf"}, "anyOf": described["oneOf"]}


def _only(value: Any) -> dict[str, Any]:
    """JSON schema of one value, of one type: generators of clients know no enums of several."""
    if isinstance(value, list):
        items = {"items": _only(value[0])} if value else {"items": {}}
        return {"type": "array", "minItems": len(value), "maxItems": len(value), **items}
    if isinstance(value, dict):
        return {"type": "object", "maxProperties": 0}
    kind = {bool: "boolean", int: "integer", float: "number", str: "string"}[type(value)]
    return {"type": kind, "const": value}


def ignored_fields(body: RequestModel) -> list[str]:
    """Paths of the values in `body` that the server ignores: unknown fields that are not null, unsupported tools and
    items. Each is named once and is safe in a header."""
    found: dict[str, None] = {}
    for path in _unknown(body, ""):
        found[path] = None
        if len(found) == MAX_IGNORED:
            break
    return list(found)


def _unknown(body: RequestModel, path: str) -> Iterator[str]:
    for name in body.ignored_paths():
        yield path + _UNPRINTABLE.sub("?", name[:MAX_NAME])
    fields = type(body).model_fields
    for name in body.model_fields_set:
        value = getattr(body, name) if name in fields else None
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, RequestModel):
                break  # a list's items are of one kind
            kind = item.unsupported_kind()
            if kind is None:
                yield from _unknown(item, f"{path}{name}.")
            else:
                yield f"{path}{name}.{_UNPRINTABLE.sub('?', kind[:MAX_NAME])}"

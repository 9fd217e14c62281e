"""Base model and bounded types of the sections of the spec."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

WRONG = "wrong"  # type of an error whose message needs no input value appended
# Keys of json_schema_extra: the field's default is part of the CRD schema, so the API server stores it; and the entries
# of a list are identified by their name.
STORED = "x-stored"
KEYED_BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class Section(BaseModel):
    """A section of the resource: lowerCamelCase in JSON, snake_case in Python.

    Unknown fields are rejected and values are not coerced. The string below a field is its description in the schema.
    Rendering chooses the value of an optional field whose default is None; the description documents it.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


def _number_or_text(pattern: str, what: str) -> tuple[PlainValidator, WithJsonSchema]:
    compiled = re.compile(pattern)

    def check(value: Any) -> int | str:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, str) and len(value) <= 64 and compiled.fullmatch(value):
            return value
        raise PydanticCustomError(WRONG, "{sentence}", {"sentence": f"{value!r} is not {what}"})

    either = [{"type": "integer"}, {"type": "string"}]
    schema = {"anyOf": either, "x-kubernetes-int-or-string": True, "minimum": 0, "pattern": pattern, "maxLength": 64}
    return PlainValidator(check), WithJsonSchema(schema)


Quantity = Annotated[
    int | str,
    *_number_or_text(
        r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]+)?$", "a quantity such as 500m, 16Gi or 2"
    ),
]
CountOrPercent = Annotated[
    int | str, *_number_or_text(r"^(100|[1-9]?[0-9])%$", "a whole number or a percentage from 0% to 100%")
]

_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
# DNS-1123 subdomain
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=rf"^({_LABEL_NAME})?$")]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]

# Of a Hugging Face repository
Revision = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")]
Seconds = Annotated[int, Field(ge=1, le=3600)]
# An object without a schema
Free = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]


class SecretKeyRef(Section):
    """A key of a Secret in the resource's namespace. Only the engine's pods read it; the operator does not."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]
    """Key in the Secret's data."""

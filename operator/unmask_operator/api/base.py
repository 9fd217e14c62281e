"""Base model and bounded types of the sections of the spec, and fields that set a flag of the runtime.

The bounds and values of such a field come from the runtime's flag table. Importing the table does not import torch. A
value in CamelCase (MultiBd) maps to the flag's spelling (multi_bd).
"""

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from runtime.config import FLAGS, Flag

WRONG = "wrong"  # type of an error whose message needs no input value appended
_BY_NAME = {flag.name: flag for flag in FLAGS}
FLAG = "x-flag"  # keys of a field's json_schema_extra; the schema names the flag in the description and drops them
_OFF = "x-switches-off"
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


def spelling(value: str) -> str:
    """Converts a value of the resource to the spelling of its flag: TritonGrouped -> triton_grouped."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", value).lower()


def flag_field(name: str, description: str | None = None, high: float | None = None, off: bool = False) -> Any:
    """Returns an optional field that sets ``--name``. Without a value, the runtime's default applies.

    Args:
        name: name of the flag. The field has the flag's bounds.
        description: of the field; None: the string below it.
        high: upper bound if the flag has none.
        off: whether the flag negates the field (prefixCaching, --disable-prefix-caching).
    """
    flag = _BY_NAME[name]
    bounds: dict[str, Any] = {"gt" if flag.above_low else "ge": flag.low} if flag.low is not None else {}
    top = flag.high if flag.high is not None else high
    if top is not None:
        bounds["le"] = top
    if flag.type == "int":
        bounds = {key: int(value) for key, value in bounds.items()}
    return Field(default=None, description=description, json_schema_extra={FLAG: name, _OFF: off}, **bounds)


def flag_of(field: FieldInfo) -> Flag | None:
    """Returns the flag that a field sets; None if it sets none."""
    name = _extra(field).get(FLAG)
    return None if name is None else _BY_NAME[name]


def flag_argument(flag: Flag, field: FieldInfo, value: str | int | float | bool) -> str:
    """Returns ``--name=value`` for a value of the spec."""
    if isinstance(value, bool):
        return f"--{flag.name}={str(value is not _extra(field)[_OFF]).lower()}"
    if isinstance(value, str):
        value = spelling(value)
    return f"--{flag.name}={value}"


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}

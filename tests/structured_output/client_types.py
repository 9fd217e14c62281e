"""Schemas that zod 4 and pydantic 2 write, by type."""

from __future__ import annotations

import enum
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import pydantic
from pydantic import AnyUrl, Base64Str, BaseModel, Field, SecretStr

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
ISO_DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
HOSTNAME = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)
_DAY = (
    r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-"
    r"(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))"
)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
_UUID = r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|0{8}-0{4}-0{12})$"
UUID_OF_ANY_VERSION = (
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|"
    "00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"
)
UUID_4 = "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12})$"
EMAIL_OF_4_6 = r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
EMOJI = (
    r"^(?=[\s\S]*[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3])"
    r"[\p{Extended_Pictographic}\p{Emoji_Component}]+$"
)
_BASE64 = r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"
_SAFE = 2**53 - 1
DATE = f"^{_DAY}$"
DATE_TIME = rf"^{_DAY}T(?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:Z))$"
TIME = r"^(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?$"
IPV4 = rf"^(?:{_BYTE}\.){{3}}{_BYTE}$"


def _text(format: str, pattern: str = "", **more: Any) -> dict[str, Any]:
    made = {"type": "string", "format": format, **more}
    return made | {"pattern": pattern} if pattern else made


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT, FLOAT, INT = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": -_SAFE, "maximum": _SAFE}
KEYS = {"type": "string", "enum": ["a", "b"]}
ZOD: dict[str, dict[str, Any]] = {
    "string": TEXT,
    "number": FLOAT,
    "int": INT,
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "literal": {"type": "string", "const": "a"},
    "enum": KEYS,
    "nativeEnum": {"type": "number", "enum": [0, 1]},
    "object": {**_object(a=TEXT), "additionalProperties": False},
    "strictObject": {**_object(a=TEXT), "additionalProperties": False},
    "looseObject": {**_object(a=TEXT), "additionalProperties": {}},
    "array": {"type": "array", "items": TEXT},
    "array with min and max": {"type": "array", "items": FLOAT, "minItems": 1, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [TEXT, FLOAT]},
    "union": {"anyOf": [TEXT, FLOAT]},
    "discriminatedUnion": {
        "oneOf": [{**_object(kind={"type": "string", "const": "a"}, x=TEXT), "additionalProperties": False},
                  {**_object(kind={"type": "string", "const": "b"}, y=FLOAT), "additionalProperties": False}]
    },
    "intersection": {"allOf": [_object(a=TEXT), _object(b=FLOAT)]},
    "optional field": {**_object(a=TEXT), "required": [], "additionalProperties": False},
    "nullable": {"anyOf": [TEXT, {"type": "null"}]},
    "default": {**_object(a={"default": "x", "type": "string"}), "additionalProperties": False},
    "record of strings": {"type": "object", "propertyNames": TEXT, "additionalProperties": FLOAT},
    "record of an enum": {"type": "object", "propertyNames": KEYS, "additionalProperties": FLOAT,
                          "required": ["a", "b"]},
    "partialRecord": {"type": "object", "propertyNames": KEYS, "additionalProperties": FLOAT},
    **{
        f"record of {format} names": {
            "type": "object",
            "propertyNames": _text(format, pattern),
            "additionalProperties": FLOAT,
        }
        for format, pattern in (
            ("uuid", UUID_OF_ANY_VERSION), ("email", EMAIL_OF_4_6), ("date", DATE), ("date-time", DATE_TIME),
        )
    },
    "email": _text("email", EMAIL),
    "emoji": _text("emoji", EMOJI),
    "url": _text("uri"),
    "uuid": _text("uuid", _UUID),
    "datetime": _text("date-time", rf"^(?:{_DAY}T(?:(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z)))$"),
    "date": _text("date", DATE),
    "time, zod 4.0": _text("time", TIME),
    "datetime without seconds, zod 4.0": _text("date-time", rf"^{_DAY}T(?:(?:[01]\d|2[0-3]):[0-5]\d(?:Z))$"),
    "duration": _text("duration", ISO_DURATION),
    "hostname": _text("hostname", HOSTNAME),
    "ipv4": _text("ipv4", IPV4),
    "cidrv4": _text("cidrv4", rf"^({_BYTE}\.){{3}}{_BYTE}\/([0-9]|[1-2][0-9]|3[0-2])$"),
    "base64": _text("base64", _BASE64, contentEncoding="base64"),
    "jwt": _text("jwt"),
    "never in an optional field": {**_object(a=TEXT), "properties": {"a": TEXT, "b": {"not": {}}}},
}  # fmt: skip


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Leaf(BaseModel):
    name: str


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    radius: int = 1


class Square(BaseModel):
    kind: Literal["square"] = "square"
    side: int


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


# EmailStr of pydantic is left out, because it needs another package. Its schema has just a format.
_TYPES: dict[str, Any] = {
    "str": str, "int": int, "float": float, "bool": bool, "None": None, "Literal": Literal["a", "b"], "Enum": Color,
    "list": list[int],
    "list with bounds": Annotated[list[int], Field(min_length=1, max_length=3)],
    "tuple[int, str]": tuple[int, str], "tuple[int, ...]": tuple[int, ...], "dict[str, int]": dict[str, int],
    "dict[Literal, int]": dict[Literal["a", "b"], int], "dict[Enum, int]": dict[Color, int],
    "Optional": Optional[int],  # noqa: UP045
    "Union": Union[int, str],  # noqa: UP007
    "discriminated Union": Annotated[Cat | Dog, Field(discriminator="kind")],
    "discriminated Union with defaults": Annotated[Circle | Square, Field(discriminator="kind")],
    "nested model": Leaf, "recursive model": Tree, "alias": Annotated[int, Field(alias="other-name")],
    "default": Annotated[int, Field(default=3)],
    "constr(pattern)": Annotated[str, Field(pattern=r"^[a-z]\d+$")],
    "constr(min, max)": Annotated[str, Field(min_length=1, max_length=3)],
    "conint": Annotated[int, Field(ge=1, lt=5)],
    "confloat(multiple_of)": Annotated[float, Field(multiple_of=0.5)],
    "date": date, "datetime": datetime, "time": time, "timedelta": timedelta, "UUID": UUID, "AnyUrl": AnyUrl,
    "IPv4Address": IPv4Address, "IPv4Network": IPv4Network, "Path": Path, "SecretStr": SecretStr, "bytes": bytes,
    "Base64Str": Base64Str, "Decimal": Decimal,
}  # fmt: skip
_DISTINCT = {"set": set[int], "frozenset": frozenset[str]}  # their items are unique, which is refused by name


def _model(kind: Any) -> dict[str, Any]:
    return pydantic.create_model("Model", field=(kind, ...)).model_json_schema()


PYDANTIC: dict[str, dict[str, Any]] = {name: _model(kind) for name, kind in _TYPES.items()}
PYDANTIC["EmailStr"] = {"type": "object", "properties": {"field": _text("email")}, "required": ["field"]}
DISTINCT: dict[str, dict[str, Any]] = {name: _model(kind) for name, kind in _DISTINCT.items()}
EVERY = {f"zod {name}": schema for name, schema in ZOD.items()}
EVERY |= {f"pydantic {name}": schema for name, schema in PYDANTIC.items()}

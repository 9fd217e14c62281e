"""Request bodies: their base model, and how they are read, decoded, parsed and validated within limits."""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar, get_args

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, GetJsonSchemaHandler, Tag
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, from_json, to_json
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from runtime.errors import RequestError
from runtime.request.validation import from_text, integral, refuse
from runtime.server.http_protocol.content_encoding import decoding


def integrals(value: Any) -> Any:
    """Replaces the floats in a list that are integers; other values stay."""
    return [*map(integral, value)] if isinstance(value, list) and float in set(map(type, value)) else value


MAX_IGNORED = 16  # ignored fields that an answer names
MAX_NAME = 64  # characters of one
MAX_MESSAGES = 2048
MAX_PARTS = 2048  # of a message
MAX_TOOLS = 256
# JSON knows numbers alone: clients in languages without integers write 20.0 for 20. Forms of some clients write texts.
Integer = Annotated[int, BeforeValidator(lambda value: integral(from_text(value)))]
Number = Annotated[float, BeforeValidator(from_text)]
# A text that some clients have as a number, such as the id of a user.
Identifier = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
]
Integers = Annotated[list[int], Field(fail_fast=True), BeforeValidator(integrals)]
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.-]")


class RequestModel(BaseModel):
    """Base of request models. Unknown fields are accepted, and `ignored_fields` returns their names."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    def unsupported_kind(self) -> str | None:
        """Returns the type of this part if the server ignores it as a unit, such as a hosted tool; else None."""
        return None

    def ignored_paths(self) -> Iterator[str]:
        """Yields paths, relative to this object, of known fields with values that the server ignores."""
        yield from ()


def api_field(description: str, *examples: Any, **options: Any) -> Any:
    """Returns description and examples of a field. `options`: limits and default as pydantic has them."""
    return Field(description=description, examples=list(examples) or None, **options)


def optional(description: str, *examples: Any, **limits: Any) -> Any:
    """Returns a field of a `RequestModel` that is None by default."""
    return api_field(description, *examples, default=None, **limits)


def ignored_field(*examples: Any) -> Any:
    """Returns a field of a `RequestModel` that clients send and nothing reads."""
    return optional("accepted for compatibility; ignored", *examples)


class UnsupportedField:
    """Marks a field as unsupported: only null and neutral values are valid."""

    def __init__(self, *neutral: Any, why: str = "is not supported; leave it out") -> None:
        """`why`: text of errors after the name of the field."""
        self.neutral = neutral
        self.why = why

    def check(self, value: Any) -> Any:
        if any(type(neutral) is int for neutral in self.neutral):
            value = integral(from_text(value))
        # a bool equals an int in Python, so the types count too
        if value is not None and not any(
            value == v and isinstance(value, bool) == isinstance(v, bool) for v in self.neutral
        ):
            raise PydanticCustomError("not_built", "{why}", {"why": self.why})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        example = self.neutral[0] if self.neutral else None
        kinds = [*map(_only, self.neutral), {"type": "null"}]
        return {"anyOf": kinds, "description": f"any other value {self.why}", "examples": [example]}


def union_tag(content: Any) -> str:
    """Returns the arm of a union of a list and a string, for pydantic's Discriminator."""
    return "list" if isinstance(content, list) else "str"


T = TypeVar("T")
# Lists of limited length, whose validation ends at the first error.
MessageList = Annotated[list[T], Field(max_length=MAX_MESSAGES, fail_fast=True)]
PartList = Annotated[list[T], Field(max_length=MAX_PARTS, fail_fast=True)]
ToolList = Annotated[list[T], Field(max_length=MAX_TOOLS, fail_fast=True)]
TextOrParts = Annotated[Annotated[str, Tag("str")] | Annotated[PartList[T], Tag("list")], Discriminator(union_tag)]


class AnyOfUnion:
    """Marks a union whose arm is selected by a function: its JSON schema is `anyOf`, as a value may match several."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        return {**{name: value for name, value in described.items() if name != "oneOf"}, "anyOf": described["oneOf"]}


def _only(value: Any) -> dict[str, Any]:
    """Returns the JSON schema of one value. Client generators do not support enums of several types."""
    if isinstance(value, list):
        items = {"items": _only(value[0])} if value else {"items": {}}
        return {"type": "array", "minItems": len(value), "maxItems": len(value), **items}
    if isinstance(value, dict):
        return {"type": "object", "maxProperties": len(value)}
    kind = {bool: "boolean", int: "integer", str: "string"}[type(value)]
    return {"type": kind, "const": value}


def ignored_fields(body: RequestModel) -> list[str]:
    """Returns paths of ignored values: unknown fields that are not null, unsupported tools and items.

    Each path occurs once and is safe in a header.
    """
    found: dict[str, None] = {}
    for path in _unknown(body, ""):
        found[path] = None
        if len(found) == MAX_IGNORED:
            break
    return list(found)


def _unknown(body: RequestModel, path: str) -> Iterator[str]:
    unknown = (name for name, value in (body.model_extra or {}).items() if value is not None)
    for name in (*unknown, *body.ignored_paths()):
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


class ClientGone(RequestError):
    """The client has disconnected."""

    def __init__(self) -> None:
        super().__init__("the client closed the connection", status=499)


async def _expire_on_disconnect(scope: asyncio.Timeout, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.reschedule(0.0)


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancels what runs in this context, and raises ClientGone, when the client disconnects."""
    try:
        async with asyncio.timeout(None) as scope:
            watcher = asyncio.create_task(_expire_on_disconnect(scope, receive))
            try:
                yield
            finally:
                watcher.cancel()
    except TimeoutError:
        if not scope.expired():  # an error of the context
            raise
        raise ClientGone from None


MAX_VALUES = 2**17  # in lists and objects together; of a prompt given as ids these are the ids
MAX_STRINGS = 2**14  # keys included
MAX_FIELDS = 2**13  # of objects
MAX_CONTAINERS = 2**13  # objects and lists
MAX_DIGITS = 64  # in a row: what a number costs grows with the square of its length
SCAN_BYTES = 2**18  # bytes that are counted at once

_DIGITS = bytes.maketrans(b"123456789", b"000000000")


def check_shape(*values: bytes) -> None:
    """Raises RequestError 400 for JSON values that hold more than the limits above together.

    Strings are matched per value, so that an open string of an invalid value hides nothing of the next.
    """
    for _ in check_shape_in_steps(*values):
        pass


def check_shape_in_steps(*values: bytes) -> Iterator[None]:
    """`check_shape` in steps of a few milliseconds.

    In invalid JSON, everything before the first fault is counted correctly, and no parser reads further.
    """
    quotes = containers = fields = commas = 0
    for data in values:
        at = odd = 0  # odd: whether an odd number of quotes comes before, so that a string is open
        while at < len(data):
            piece = data[at : at + SCAN_BYTES]
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape is not cut
                piece = data[at : at + SCAN_BYTES + 1]
            at += len(piece)
            if b"\\" in piece:  # outside of strings a backslash is no JSON; within, pairs go first: \\" ends a string
                piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            here = piece.count(b'"')
            if here or odd:
                piece = b'"'.join(piece.split(b'"')[odd::2])  # text outside of strings
            quotes += here
            odd = (odd + here) % 2
            containers += piece.count(b"{") + piece.count(b"[")
            fields += piece.count(b":")
            commas += piece.count(b",")
            if quotes > 2 * MAX_STRINGS:
                raise _too_many("strings (keys included)", MAX_STRINGS)
            if containers > MAX_CONTAINERS:
                raise _too_many("objects and lists", MAX_CONTAINERS)
            if fields > MAX_FIELDS:
                raise _too_many("fields of objects", MAX_FIELDS)
            if commas >= MAX_VALUES:
                raise _too_many("values", MAX_VALUES)
            if b"0" * (MAX_DIGITS + 1) in piece.translate(_DIGITS):
                raise RequestError(
                    f"the body holds a number of more than {MAX_DIGITS} digits; send it shorter",
                    code="body_too_complex",
                )
            yield


def _too_many(what: str, limit: int) -> RequestError:
    return RequestError(f"the body holds more than {limit} {what}; send fewer", code="body_too_complex")


MAX_BODY = 2 * 2**20  # bytes


async def read_body(request: Request) -> bytes:
    """Returns the body. Raises RequestError 413 above 2 MiB, ClientGone.

    A body with a too large Content-Length is not requested (``Expect: 100-continue``). The connection discards the rest
    of a rejected body.
    """
    content_length = request.headers.get("content-length")
    if content_length is not None and int(content_length) > MAX_BODY:  # a number, which the HTTP parser has checked
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise _too_large()
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


async def decode_body(data: bytes, names: Sequence[str]) -> bytes:
    """Returns the body without its content codings, and serves others between steps.

    Args:
        data: The body as it was sent.
        names: The codings as `codings` returns them.

    Raises:
        RequestError: 400 for a body that is not what its header says; 413 once more than 2 MiB are decoded.
    """
    for name in reversed(names):
        output = bytearray()
        for piece in decoding(data, name):
            output += piece
            if len(output) > MAX_BODY:
                raise _too_large()
            await asyncio.sleep(0)
        data = bytes(output)
    return data


def _too_large() -> RequestError:
    message = f"the body exceeds {MAX_BODY // 2**20} MiB; send a smaller one"
    return RequestError(message, status=413, code="body_too_large")


B = TypeVar("B", bound=RequestModel)

# messages of pydantic with Python types, in terms of JSON
_JSON_MESSAGES = {
    "model_type": "Input should be an object",
    "model_attributes_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
    "union_tag_not_found": "Field required",
}


def parse_body(kind: type[B], data: bytes) -> B:
    """Parses a body. Raises RequestError 400.

    The preprocessor runs the steps for large bodies separately, so that none blocks the event loop for long.
    """
    check_shape(data)
    return validate_body(kind, parse_json(data))


def parse_json(data: bytes) -> Any:
    """Returns the JSON value, without a byte order mark (RFC 8259, section 8.1). Raises RequestError 400."""
    try:
        return from_json(data.removeprefix(BOM_UTF8))
    except ValueError as invalid:
        reason = str(invalid)  # has no text of the body
        raise RequestError(f"the body is not JSON: {reason}", code="invalid_json", own=reason) from None


def validate_body(kind: type[B], value: Any) -> B:
    """Returns the validated body. Raises RequestError 400.

    Validation of a list ends at its first error. The shape limits bound the number of errors of an object.
    """
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_input=False)
    first = errors[0]
    loc, message = first["loc"], _JSON_MESSAGES.get(first["type"], first["msg"])
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        loc = (*loc, "type")
    if first["type"] == "union_tag_invalid":
        message = f"Input should be one of {first['ctx']['expected_tags']}"
    param = _path(loc, value)
    if param is None:
        raise RequestError("the body must be a JSON object")
    own = message if first["type"] in ("literal_error", "union_tag_invalid") else ""
    if first["type"].endswith("_type") and (example := _example(kind, first["loc"])) is not None:
        own = f"; for example {to_json(example, inf_nan_mode='constants').decode()}"
        message += own
    raise refuse(param, message, own=own)


def _example(annotation: Any, loc: Sequence[int | str], example: Any = None) -> Any:
    """Returns the example of the value at `loc` below a type, whose own is `example`; None if there is none."""
    for i, name in enumerate(loc):
        if isinstance(name, int):
            example = example[0] if isinstance(example, list) and example else None
        elif isinstance(example, dict | list) and name not in _ARMS:
            example = next(iter(example.values()), None) if isinstance(example, dict) else None
        for model in _models(annotation):
            if (declared := model.model_fields.get(str(name))) is not None:
                return _example(declared.annotation, loc[i + 1 :], (declared.examples or [None])[0])
    return example


def _models(annotation: Any) -> Iterator[type[RequestModel]]:
    """Yields the models within a type."""
    if isinstance(annotation, type) and issubclass(annotation, RequestModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


_ARMS = frozenset(("str", "list", "map", "any", "item", "added"))  # of unions


def _path(loc: tuple[int | str, ...], value: Any) -> str | None:
    """``("messages", 0, "content", "str")`` -> ``"messages[0].content"``; long names of clients are cut.

    Arms of unions are left out. `value` has no such field, and its `type` may be the arm of the fields behind.
    """
    path = ""
    for i, part in enumerate(loc):
        fields = value if isinstance(value, dict) else {}
        is_arm = part in _ARMS or (i + 1 < len(loc) and fields.get("type") == part)
        if is_arm and part not in fields:
            continue
        path += f"[{part}]" if isinstance(part, int) else ("." if path else "") + part[:80]
        value = value[part] if isinstance(value, list) and isinstance(part, int) else fields.get(part)
    return path or None

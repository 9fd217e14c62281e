"""From a body's bytes to what a route reads: its shape, its JSON, its fields."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Any, TypeVar

import pydantic
from pydantic_core import from_json

from runtime.errors import RequestError
from runtime.server.fields import RequestModel
from runtime.server.shape import check_shape

B = TypeVar("B", bound=RequestModel)

# what pydantic says of Python's types, as JSON has it
_JSON_MESSAGES = {
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
}


def parse_body(kind: type[B], data: bytes) -> B:
    """The body, or RequestError: 400, as OpenAI answers whatever is wrong with a body.

    Large bodies go through its three steps one by one, so that none holds the event loop for long.
    """
    check_shape(data)
    return validate(kind, decode(data))


def decode(data: bytes) -> Any:
    """JSON's values; a byte order mark before them is skipped (RFC 8259, section 8.1). Raises RequestError 400."""
    try:
        return from_json(data.removeprefix(BOM_UTF8))
    except ValueError as invalid:
        raise RequestError(f"the body is not JSON: {invalid}", code="invalid_json") from None


def validate(kind: type[B], value: Any) -> B:
    """The body that `value` is. Raises RequestError 400.

    A list ends at its first error; how many an object can have is limited by what a body may hold.
    """
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    param = _path(first["loc"])
    if param is None:
        raise RequestError("the body must be a JSON object")
    raise RequestError(f"{param}: {_JSON_MESSAGES.get(first['type'], first['msg'])}", param=param)


def _path(loc: tuple[int | str, ...]) -> str | None:
    """``("messages", 0, "content", "str")`` -> ``"messages[0].content"``; long names of clients are cut."""
    path = ""
    for part in loc:
        if part in ("str", "list", "any"):  # a union's arm
            continue
        path += f"[{part}]" if isinstance(part, int) else ("." if path else "") + part[:80]
    return path or None

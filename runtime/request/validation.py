"""Validates the type and range of request fields. Error messages begin with the path of the field."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from runtime.errors import RequestError
from runtime.request.field_spec import Limits, Value


def refuse(param: str, sentence: str, *, status: int = 400, code: str | None = None, own: str = "") -> RequestError:
    """Returns a RequestError for the field `param`. `code` and `own`: as in `RequestError`."""
    return RequestError(f"{param}: {sentence}", param=param, status=status, code=code, own=own)


# A number of JSON, which some clients send as a text.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_DIGITS = 64  # of a number in a text, as of those in a body


def from_text(value: Any) -> Any:
    """Converts a text that is a number of JSON, such as "0.7", to it. Returns any other value unchanged."""
    if not isinstance(value, str) or len(value) > _MAX_DIGITS or (found := _NUMBER.fullmatch(value)) is None:
        return value
    number = float(value) if any(found.groups()) else int(value)
    return number if math.isfinite(number) else value


def integral(value: Any) -> Any:
    """Converts a float with an integral value, such as 20.0, to an int. Returns any other value unchanged."""
    return int(value) if type(value) is float and value.is_integer() else value


def integer(param: str, value: object, low: int, high: int) -> int:
    """Returns `value` if it is an int from `low` to `high` (True and 3.0 are not)."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(param, f"{preview(value)} is not an integer, such as {max(low, 1)}")
    if not low <= value <= high:
        limit = f"at least {low}" if value < low else f"at most {high}"
        raise refuse(param, f"{preview(value)} is out of range; it must be {limit}")
    return value


def number(param: str, value: object, low: float, high: float, *, above_low: bool = False) -> float:
    """Returns `value` as a float from `low` to `high` (`above_low`: without `low`)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refuse(param, f"{preview(value)} is not a number, such as {max(low, 1) if high == math.inf else high:g}")
    if not low <= value <= high or (above_low and value == low):
        limit = f"above {low:g} and at most {high:g}" if above_low else f"from {low:g} to {high:g}"
        if high == math.inf:
            limit = f"a finite number of at least {low:g}"
        raise refuse(param, f"{preview(value)} is out of range; it must be {limit}")
    if not math.isfinite(value):
        raise refuse(param, f"{value} is not a finite number")
    return float(value)


def flag(param: str, value: object) -> bool:
    """Returns `value` if it is a bool."""
    if not isinstance(value, bool):
        raise refuse(param, f"{preview(value)} is not true or false")
    return value


def choice(param: str, value: object, choices: Iterable[str]) -> str:
    """Returns `value` if it is one of the choices."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise refuse(param, f"{preview(value)} is not one of {', '.join(choices)}")
    return value


def check_declared(param: str, value: object, limits: Limits) -> Value:
    """Returns `value` if the declaration of the field allows it. Not for lists of texts, ids and objects."""
    if limits.kind == "number":
        high = math.inf if limits.high is None else limits.high
        return number(param, value, limits.low, high, above_low=limits.above_low)
    if limits.kind == "integer":
        count = integer(param, value, int(limits.low), 2**31 if limits.high is None else int(limits.high))
        if limits.divides is not None and limits.divides % count:
            raise refuse(param, f"{count} does not divide {limits.divides}")
        if count % limits.multiple_of:
            raise refuse(param, f"{count} is no multiple of {limits.multiple_of}")
        return count
    if limits.kind == "choice":
        return choice(param, value, limits.choices)
    if limits.kind == "text":
        return text(param, value, 2**31 if limits.high is None else int(limits.high))
    return flag(param, value)


def text(param: str, value: object, max_len: int) -> str:
    """Returns `value` if it is text of at most `max_len` characters."""
    if not isinstance(value, str):
        raise refuse(param, f"{preview(value)} is not text")
    if len(value) > max_len:
        raise refuse(param, f"has {len(value)} characters; at most {max_len}")
    return value


def preview(value: object) -> str:
    """Returns a short text for an untrusted value, so that error messages do not grow with the request."""
    try:
        shown = repr(value[:60] if isinstance(value, str) else value)
    except ValueError:  # an int with too many digits to print
        return "the number given"
    return shown if len(shown) <= 60 else shown[:57] + "..."

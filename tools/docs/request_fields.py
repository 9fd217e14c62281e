"""Generates the table of docs/reference/request-fields.md: ``python -m tools.docs.request_fields``."""

from __future__ import annotations

from runtime.request.field_spec import Limits
from runtime.request.sampling_params import PARAMETERS, Parameter
from tools.docs.flags import put_between, rewrite

BEGIN, END = "<!-- fields: python -m tools.docs.request_fields -->", "<!-- end of fields -->"


def field_table() -> str:
    """Returns the table of all fields of `SamplingParams`, in order."""
    rows = [_row(field) for field in PARAMETERS if not field.refused]
    return "\n".join(["| Field | Value | Left out | Meaning |", "|---|---|---|---|", *rows])


def _row(field: Parameter) -> str:
    value = f"of `decoding.{field.stands_for}`" if field.stands_for else describe_values(field)
    return f"| `{field.name}` | {value} | {field.unset} | {field.help} |"


def describe_values(limits: Limits) -> str:
    """Describes the valid values of a field."""
    if limits.kind == "choice":
        return ", ".join(f"`{word}`" for word in limits.choices)
    if limits.kind == "flag":
        return "`true`, `false`"
    if limits.kind == "object":
        return "object"
    if limits.kind == "ids":
        return f"up to {limits.high:.0f} ids"
    if limits.kind in ("text", "texts"):
        return f"{limits.high:,.0f} characters"
    upper = "" if limits.high is None or limits.high == 2**31 else f" to {_number(limits.high)}"
    if limits.above_low:
        return f"above {limits.low:g}{upper}"
    unit = f", a multiple of {limits.multiple_of}" if limits.multiple_of > 1 else ""
    return f"{_number(limits.low)}{upper or ' or more'}{unit}"


def _number(value: float) -> str:
    """Formats a number; bounds of 64 bits as powers of 2."""
    for power in (63, 64):
        if value in (2**power - 1, -(2**power)):
            return f"{'-' if value < 0 else ''}2^{power}{' - 1' if value > 0 else ''}"
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def with_table(page: str) -> str:
    """Returns `page` with the table between its markers."""
    return put_between(page, BEGIN, END, field_table())


if __name__ == "__main__":
    rewrite("reference/request-fields.md", with_table)

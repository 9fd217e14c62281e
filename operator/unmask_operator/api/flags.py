"""How a field of the spec stands for a flag of the runtime: bounds and values come from the runtime's own table.

Importing the table loads no torch. A value in CamelCase (MultiBd) stands for the flag's own spelling (multi_bd).
"""

import re
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from runtime.config import FLAGS, Flag

_BY_NAME = {flag.name: flag for flag in FLAGS}
_FLAG = "x-flag"  # keys of a field's json_schema_extra; the schema drops them
_OFF = "x-switches-off"


def spelling(value: str) -> str:
    """A value of the resource as its flag spells it: TritonGrouped -> triton_grouped."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", value).lower()


def flag_field(name: str, description: str, high: float | None = None, off: bool = False) -> Any:
    """A field that sets ``--name``: left out by default, and then the runtime decides.

    Its bounds are the flag's; `high` bounds what the table leaves open. `off`: a true value of the field is the flag's
    false (prefixCaching, --disable-prefix-caching).
    """
    flag = _BY_NAME[name]
    bounds: dict[str, Any] = {"gt" if flag.above_low else "ge": flag.low} if flag.low is not None else {}
    top = flag.high if flag.high is not None else high
    if top is not None:
        bounds["le"] = top
    if flag.type == "int":
        bounds = {key: int(value) for key, value in bounds.items()}
    return Field(
        default=None, description=f"{description} (--{name})", json_schema_extra={_FLAG: name, _OFF: off}, **bounds
    )


def flag_of(field: FieldInfo) -> Flag | None:
    """The flag that a field sets, None for a field that sets none."""
    name = _extra(field).get(_FLAG)
    return None if name is None else _BY_NAME[name]


def flag_argument(flag: Flag, field: FieldInfo, value: str | int | float | bool) -> str:
    """``--name=value`` for a value that the spec sets."""
    if isinstance(value, bool):
        return f"--{flag.name}={str(value is not _extra(field)[_OFF]).lower()}"
    if isinstance(value, str):
        value = spelling(value)
    return f"--{flag.name}={value}"


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}

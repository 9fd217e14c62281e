"""Fields of the spec that set a flag of the runtime. Bounds and values come from the runtime's flag table.

Importing the table does not import torch. A value in CamelCase (MultiBd) maps to the flag's spelling (multi_bd).
"""

import re
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from runtime.config import FLAGS, Flag

_BY_NAME = {flag.name: flag for flag in FLAGS}
FLAG = "x-flag"  # keys of a field's json_schema_extra; the schema names the flag in the description and drops them
_OFF = "x-switches-off"


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

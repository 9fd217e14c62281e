"""Declarations of the fields of ``decoding``, by unmasking algorithms and strategies. No torch.

Each field is declared once, next to the code that reads its value. The engine collects the declarations in
``EngineInfo``. Validation (``runtime/request/decoding.py``), schema and documentation are derived from them. These are
dataclasses because machines for benchmarks do not have msgspec, which serializes dataclasses too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Value = float | int | bool | str
Kind = Literal["number", "integer", "flag", "choice", "text", "texts", "ids", "object"]

BLOCK_LENGTH = "block_length"  # field of a strategy: block size of the request
# Fields of a strategy: the sizes of canvases (``BlockLayout``)
CANVAS_LENGTH, MIN_CANVAS_LENGTH, FULL_CANVAS = "canvas_length", "min_canvas_length", "full_canvas"
SUB_BLOCK = "sub_block_size"  # field of a strategy: size of sub-blocks, which have steps of their own


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Valid values of a field.

    Attributes:
        kind: `flag` is true or false, `choice` one of `choices`, `texts` a string or a list of strings, `ids` a list of
            token ids.
        low: lower bound of a number, inclusive.
        high: upper bound of a number, inclusive; None: any finite number. For texts: the maximum number of characters.
            For ids: the maximum number of ids.
        above_low: the lower bound is exclusive.
        divides: the integer must divide this number.
        multiple_of: the integer must be a multiple of this number.
        choices: values of a choice.
    """

    kind: Kind = "number"
    low: float = 0
    high: float | None = None
    above_low: bool = False
    divides: int | None = None
    multiple_of: int = 1
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Field(Limits):
    """A field of ``decoding``, of one of the first four kinds.

    Attributes:
        name: name in requests; ``outer.inner`` is the entry `inner` of an object `outer`.
        help: one line without a period.
        default: value if the request, its mode and the server set none.
        per_block: the default is in blocks. `with_defaults` converts it to tokens for the block size of the server, and
            it scales with the block size of a request.
        neutral: a value without effect, which is accepted for algorithms that do not have the field.
        only: another field and the value that it must have. Otherwise this field is not read.
        flag: field of EngineConfig for the default, if it has another name.
    """

    name: str
    help: str
    default: Value
    per_block: bool = False
    neutral: Value | None = None
    only: tuple[str, Value] | None = None
    flag: str = ""


def fraction_field(name: str, default: float, help: str, neutral: float | None = None) -> Field:
    """Returns a field for a number from 0 to 1."""
    return Field(name=name, help=help, default=default, high=1, neutral=neutral)


@dataclass(frozen=True, kw_only=True)
class AlgorithmInfo:
    """An unmasking algorithm for the frontend. The attributes are those of `UnmaskingAlgorithm`."""

    key: str
    fields: tuple[Field, ...] = ()
    modes: dict[str, dict[str, Value]] = field(default_factory=dict)
    supports_grammar: bool = False
    reorders_tokens: bool = False


def with_defaults(fields: Iterable[Field], block_size: int, *sources: Mapping[str, Value]) -> tuple[Field, ...]:
    """Returns the fields with the defaults of a server: from the first source that has the field, else its own."""

    def served(field: Field) -> Field:
        for source in sources:
            if field.name in source:
                return replace(field, default=source[field.name], per_block=False)
        return replace(field, default=int(field.default * block_size)) if field.per_block else field

    return tuple(map(served, fields))


def values_of(fields: Iterable[Field]) -> dict[str, Value]:
    """Returns the values of a request that sets no field. `fields` have the defaults of a server (`with_defaults`)."""
    return {field.name: field.default for field in fields}


def nested(values: Mapping[str, Value]) -> dict[str, Any]:
    """Returns values by full name as a request has them: ``outer.inner`` is the entry `inner` of an object `outer`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        outer, _, inner = name.rpartition(".")
        (found.setdefault(outer, {}) if outer else found)[inner] = value
    return found

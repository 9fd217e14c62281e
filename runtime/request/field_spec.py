"""What a request may set under ``decoding``, as a rule or a strategy declares it: plain data, no torch.

A declaration stands once, beside the code that reads the value. The engine collects them into ``EngineInfo``; checks
(``runtime/request/decoding.py``), schema and documentation come from there. Dataclasses, as the kernels' machines have
no msgspec; it sends them all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Value = float | int | bool | str
Kind = Literal["number", "integer", "flag", "choice", "text", "texts", "ids", "object"]

BLOCK_LENGTH = "block_length"  # a strategy's field: size of a request's own blocks
SUB_BLOCK = "sub_block_size"  # a strategy's field: size of what blocks are decoded in, each with steps of its own


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which values a field takes.

    Attributes:
        kind: `flag` is true or false, `choice` one of several words, `texts` one text or a list of them, `ids` a list
            of token ids.
        low, high: inclusive bounds of a number; `above_low` makes the lower one exclusive, no `high` means any finite.
            Of texts `high` is the most characters of one, of ids the most of them.
        divides: what an integer has to be a divisor of.
        choices: the words of a choice.
    """

    kind: Kind = "number"
    low: float = 0
    high: float | None = None
    above_low: bool = False
    divides: int | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Field(Limits):
    """One field under a request's ``decoding``: of the first four kinds.

    Attributes:
        name: as requests spell it; ``outer.inner`` is the entry `inner` of an object `outer`.
        help: one line without a full stop.
        default: of a request, a mode and a server that say nothing; with `per_block` in blocks, not in tokens, and once
            a server has it (`with_defaults`), for blocks of the server's size: it grows with a request's own.
        neutral: a value that asks for nothing, so that requests may give it with rules that do not know the field.
        only: another field and the value of it with which alone this one is read.
        flag: the server flag of its default, as a field of EngineConfig, where that has another name.
    """

    name: str
    help: str
    default: Value
    per_block: bool = False
    neutral: Value | None = None
    only: tuple[str, Value] | None = None
    flag: str = ""


def fraction_field(name: str, default: float, help: str, neutral: float | None = None) -> Field:
    """A field of 0 to 1."""
    return Field(name=name, help=help, default=default, high=1, neutral=neutral)


@dataclass(frozen=True, kw_only=True)
class RuleInfo:
    """An acceptance rule: the fields that it reads, each mode as values of some of them, whether grammars go with it,
    and whether what stands at a position may come to stand at another."""

    key: str
    fields: tuple[Field, ...] = ()
    modes: dict[str, dict[str, Value]] = field(default_factory=dict)
    supports_grammar: bool = False
    reorders_tokens: bool = False


def with_defaults(fields: Iterable[Field], block_size: int, *sources: Mapping[str, Value]) -> tuple[Field, ...]:
    """The fields as one server has them: each default from the first source that names it, else the field's own."""

    def served(field: Field) -> Field:
        for source in sources:
            if field.name in source:
                return replace(field, default=source[field.name], per_block=False)
        return replace(field, default=int(field.default * block_size)) if field.per_block else field

    return tuple(map(served, fields))


def values_of(fields: Iterable[Field]) -> dict[str, Value]:
    """What a request gets that sets none of them; the fields are a server's (`with_defaults`)."""
    return {field.name: field.default for field in fields}

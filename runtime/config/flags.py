"""Declaration of a flag, for command line, environment, YAML, ``--help`` and the operator.

This module has plain data and checks of single values. It reads no file and no environment variable, and imports no
torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from runtime.errors import ConfigError

ENV_PREFIX = "UNMASK_"
KERNEL_CACHE = ENV_PREFIX + "KERNEL_CACHE"  # directory of compiled kernels, which is no flag
# Directory in that of a server, for code of torch.compile if the user's cache cannot be used. Its backends inherit it.
SERVER_COMPILE_CACHE = "COMPILE_CACHE_OF_UNMASK"
DECODING = "decoding defaults (a request may override them)"  # name of a group
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag.

    Attributes:
        name: Its name without leading dashes.
        group: Heading of ``--help`` under which it is listed.
        default: ``None`` means "decided at start".
        many: The value is a tuple, and the flag may be repeated. With `comma` one value may have several elements.
        low, high: Inclusive bounds of a number; `above_low` makes the lower bound exclusive.
        type: The value of "json" is an object, from JSON text or a mapping. It is stored as JSON text.
        synonyms: Other spellings of values, each with the value that it stands for.
        secret: The value is not printed.
    """

    name: str
    group: str
    help: str
    type: Literal["str", "int", "float", "bool", "json"] = "str"
    default: Any = None
    choices: tuple[str, ...] = ()
    synonyms: tuple[tuple[str, str], ...] = ()
    low: float | None = None
    high: float | None = None
    above_low: bool = False
    many: bool = False
    comma: bool = False
    aliases: tuple[str, ...] = ()
    metavar: str | None = None
    secret: bool = False
    common: bool = False  # listed by --help; --help-all lists all flags
    engine: bool = False  # a field of EngineConfig (and an argument of LLM), else of ServerConfig

    @property
    def dest(self) -> str:
        """Name in Python and, in upper case, in the environment."""
        return self.name.replace("-", "_")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.dest.upper()

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def optional(self) -> bool:
        """Whether ``auto`` and ``none`` mean the default."""
        return self.default is None


def declare_flag(group: str, help: str, *, default: Any = None, secret: bool = False, **declaration: Any) -> Any:
    """Declares a field of a configuration, which is a dataclass, as a flag.

    Args:
        group: See `Flag`.
        help: One line without a period.
        default: Default of the flag and of the field.
        secret: See `Flag`; the `repr` of the configuration omits the value.
        declaration: Attributes of `Flag` that do not follow from the field.
    """
    metadata = {"group": group, "help": help, "secret": secret, **declaration}
    return field(default=default, repr=not secret, metadata=metadata)


def declared_flags(config: type, *, engine: bool = False) -> tuple[Flag, ...]:
    """Returns the flags that the fields of a configuration declare: names, types and choices are those of the fields.

    Args:
        config: The configuration.
        engine: The attribute of the flags.
    """
    hints = get_type_hints(config)
    return tuple(
        Flag(
            name=each.name.replace("_", "-"),
            default=each.default,
            engine=engine,
            **{**_type_attributes(hints[each.name]), **each.metadata},
        )
        for each in fields(config)
        if each.metadata
    )


def _type_attributes(hint: Any) -> dict[str, Any]:
    """Returns `type`, `choices` and `many` of a flag for the type of a field, such as ``tuple[int, ...] | None``."""
    if NoneType in get_args(hint):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is tuple:
        return {"many": True, "type": get_args(hint)[0].__name__}
    return {"type": hint.__name__}


def check_fields(config: Any, flags: Iterable[Flag]) -> None:
    """Checks and converts, in place, the fields that `flags` declare."""
    for flag in flags:
        object.__setattr__(config, flag.dest, check(flag, getattr(config, flag.dest)))


def check(flag: Flag, value: Any, where: str | None = None) -> Any:
    """Converts a value to the flag's type, from text or a Python or YAML value.

    Args:
        flag: The flag.
        value: Its value.
        where: Source that a ConfigError names ("UNMASK_PORT"); by default the flag.
    """
    where = where or f"--{flag.name}"
    if flag.many:
        return _check_many(flag, value, where)
    if value is None or (flag.optional and isinstance(value, str) and value.lower() in ("auto", "none")):
        if not flag.optional:
            raise ConfigError(f"{where}: needs a value ({_describe(flag)})")
        return None
    return _check_one(flag, value, where)


def _check_many(flag: Flag, value: Any, where: str) -> tuple[Any, ...] | None:
    if value is None:
        return None if flag.optional else ()
    items: Sequence[Any] = [value] if isinstance(value, str | int | float | os.PathLike) else list(value)
    if flag.optional and len(items) == 1 and isinstance(items[0], str) and items[0].lower() in ("auto", "none"):
        return None
    if flag.comma:
        items = [part for item in items for part in (item.split(",") if isinstance(item, str) else [item])]
    return tuple(_check_one(flag, item, where) for item in items)


def _check_one(flag: Flag, value: Any, where: str) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        value = value.strip()
        if not value:
            raise ConfigError(f"{where}: is empty; leave it out or give {_describe(flag)}")
    shown = "the given value" if flag.secret else repr(value)
    wrong = ConfigError(f"{where}: {shown} is not {_describe(flag)}")
    match flag.type:
        case "bool":
            return _to_bool(value, wrong)
        case "int":
            number: float = _to_int(value, wrong)
        case "float":
            number = _to_float(value, wrong)
        case "json":
            return _to_json(value, wrong)
        case _:
            return _to_text(flag, value, where, shown, wrong)
    too_low = flag.low is not None and (number < flag.low or (flag.above_low and number == flag.low))
    if too_low or (flag.high is not None and number > flag.high):
        raise wrong
    return number


def _to_bool(value: Any, wrong: ConfigError) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise wrong


def _to_json(value: Any, wrong: ConfigError) -> str:
    try:
        found = json.loads(value, object_pairs_hook=_without_duplicates) if isinstance(value, str) else value
        if not isinstance(found, Mapping):
            raise wrong
        return json.dumps(dict(found))
    except (TypeError, ValueError, RecursionError):
        raise wrong from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _to_int(value: Any, wrong: ConfigError) -> int:
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 20:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**19:
        return value
    raise wrong


def _to_float(value: Any, wrong: ConfigError) -> float:
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if not math.isfinite(number):
        raise wrong
    return number


def _to_text(flag: Flag, value: Any, where: str, shown: str, wrong: ConfigError) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {shown} is not text; quote it")
    if not value.isprintable():
        raise wrong
    value = dict(flag.synonyms).get(value, value)
    if flag.choices and value not in flag.choices:
        raise wrong
    return str(value)


def _describe(flag: Flag) -> str:
    """Describes valid values, as text that follows "is not"."""
    if flag.choices:
        return "one of " + ", ".join(flag.choices)
    if flag.type == "bool":
        return "true or false"
    if flag.type == "str":
        return "printable text"
    if flag.type == "json":
        return 'a JSON object with each name once, such as {"steps": 4}'
    noun = "a whole number" if flag.type == "int" else "a finite number"
    low = "" if flag.low is None else f" {'above' if flag.above_low else 'of at least'} {flag.low:g}"
    if flag.high is None:
        return noun + low
    if flag.low is None:
        return f"{noun} of at most {flag.high:g}"
    if flag.above_low:
        return f"{noun} above {flag.low:g} and at most {flag.high:g}"
    return f"{noun} from {flag.low:g} to {flag.high:g}"

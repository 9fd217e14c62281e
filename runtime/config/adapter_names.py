"""Validates names of LoRA adapters, and values NAME=PATH of flags."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.errors import ConfigError

DEFAULT_MAX_LORAS = 8  # slots of a server whose adapters are loaded later
MAX_NAME_CHARS = 200


def check_adapter_name(name: str) -> str:
    """Returns the name of an adapter. Raises ConfigError if it is invalid."""
    if not name or not name.isprintable() or name != name.strip() or len(name) > MAX_NAME_CHARS:
        raise ConfigError(
            f"{name[:80]!r} is not the name of an adapter: use 1 to {MAX_NAME_CHARS} printable characters"
        )
    return name


def named_adapters(values: Iterable[str], flag: str = "--lora") -> dict[str, str]:
    """Parses NAME=PATH values; returns name -> URI. Raises ConfigError for other forms and duplicate names."""
    found: dict[str, str] = {}
    for value in values:
        name, sign, uri = value.partition("=")
        if not sign or not uri:
            raise ConfigError(f"{flag} {value!r} is not of the form NAME=PATH")
        if check_adapter_name(name) in found:
            raise ConfigError(f"{flag}: the name {name!r} is given twice")
        found[name] = uri
    return found

"""Adapters as flags name them: NAME=PATH."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.errors import ConfigError

DEFAULT_LORAS = 8  # slots of a server whose adapters come later
MOST_NAME = 200  # characters


def check_adapter_name(name: str) -> str:
    """ConfigError for what cannot be an adapter's name."""
    if not name or not name.isprintable() or name != name.strip() or len(name) > MOST_NAME:
        raise ConfigError(f"{name[:80]!r} is no name of an adapter: it takes 1 to {MOST_NAME} printable characters")
    return name


def named_adapters(values: Iterable[str], flag: str = "--lora") -> dict[str, str]:
    """Name -> where it is. ConfigError for what is no NAME=PATH, and for a name given twice."""
    found: dict[str, str] = {}
    for value in values:
        name, sign, uri = value.partition("=")
        if not sign or not uri:
            raise ConfigError(f"{flag} {value!r} is not of the form NAME=PATH")
        if check_adapter_name(name) in found:
            raise ConfigError(f"{flag}: the name {name!r} is given twice")
        found[name] = uri
    return found

"""Adapters: their flags, and how these name them (NAME=PATH)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from runtime.config.flags import Flag
from runtime.errors import ConfigError

DEFAULT_LORAS = 8  # slots of a server whose adapters come later
MOST_NAME = 200  # characters

_lora = partial(Flag, group="adapters", engine=True)
_served = partial(Flag, group="adapters")

ADAPTER_FLAGS = (
    _lora(name="use-lora", type="bool", default=False, help="serve with one adapter, which --lora-path names"),
    _lora(name="lora-path", metavar="DIR|hf://ORG/NAME[@REV]|demo://NAME", help="that adapter, as PEFT saves it"),
    _lora(
        name="pre-merge-lora",
        type="bool",
        default=False,
        help="merge it into the weights while they are loaded: it is then part of the model, and costs nothing",
    ),
    _lora(
        name="lora",
        many=True,
        default=(),
        metavar="NAME=DIR|NAME=hf://ORG/NAME[@REV]|NAME=demo://NAME",
        help="an adapter that requests name as their model, repeatable; demo://roman ships with the demo model",
    ),
    _lora(
        name="max-loras",
        type="int",
        low=1,
        high=256,
        help="adapters that the device holds at once, others wait in the host's memory; default: 8, of a server that "
        "has adapters",
    ),
    _lora(
        name="max-lora-rank",
        type="int",
        low=1,
        high=512,
        help="largest rank of an adapter; default: the largest of --lora, 16 at least",
    ),
    _served(
        name="lora-config",
        metavar="DIR|FILE",
        help="adapters that requests name: a YAML or JSON file that maps names to where they are, or a directory with "
        "a file for each name; read before the server is ready, and again when it changes",
    ),
    _served(
        name="lora-routes",
        type="bool",
        default=False,
        help="POST /v1/load_lora_adapter and /v1/unload_lora_adapter; whoever may send them has any path of the "
        "server's read",
    ),
)


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

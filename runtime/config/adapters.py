"""Flags of LoRA adapters, and their values NAME=PATH."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from runtime.config.flags import Flag
from runtime.errors import ConfigError

DEFAULT_MAX_LORAS = 8  # slots of a server whose adapters are loaded later
MAX_NAME_CHARS = 200  # characters

_lora = partial(Flag, group="adapters", engine=True)
_served = partial(Flag, group="adapters")

ADAPTER_FLAGS = (
    _lora(name="use-lora", type="bool", default=False, help="use the adapter of --lora-path for all requests"),
    _lora(
        name="lora-path",
        metavar="DIR|hf://ORG/NAME[@REV]|demo://NAME",
        help="adapter of --use-lora, in PEFT's format",
    ),
    _lora(
        name="pre-merge-lora",
        type="bool",
        default=False,
        help="merge the adapter of --lora-path into the weights at load time, so that requests cost no more",
    ),
    _lora(
        name="lora",
        many=True,
        default=(),
        metavar="NAME=DIR|NAME=hf://ORG/NAME[@REV]|NAME=demo://NAME",
        help="adapter that requests select as their model, repeatable; demo://roman is the demo model's",
    ),
    _lora(
        name="max-loras",
        type="int",
        low=1,
        high=256,
        help="maximum number of adapters in device memory, others stay in host memory; default: 8 if there are any",
    ),
    _lora(
        name="max-lora-rank",
        type="int",
        low=1,
        high=512,
        help="maximum rank of an adapter; default: the largest of --lora, at least 16",
    ),
    _served(
        name="lora-config",
        metavar="DIR|FILE",
        help="adapters that requests select: a YAML or JSON file that maps names to paths, or a directory "
        "with one file per name; it is read at start, and again when it changes",
    ),
    _served(
        name="lora-routes",
        type="bool",
        default=False,
        help="enable POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with which clients can make the "
        "server read any path",
    ),
)


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

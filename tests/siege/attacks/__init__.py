"""Every attack, registered by importing its file."""

from tests.siege.attacks import (
    bodies,
    compressed,
    crowds,
    fields,
    full,
    grammars,
    legal,
    memory,
    processors,
    prompts,
    readers,
    slow,
    upgrades,
)

__all__ = [
    "bodies",
    "compressed",
    "crowds",
    "fields",
    "full",
    "grammars",
    "legal",
    "memory",
    "processors",
    "prompts",
    "readers",
    "slow",
    "upgrades",
]

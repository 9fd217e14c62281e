"""The modules of all attacks. Importing a module registers its attacks."""

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

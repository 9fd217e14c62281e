"""Every attack, registered by importing its file."""

from tests.siege.attacks import bodies, crowds, fields, full, grammars, legal, memory, prompts, readers, slow, upgrades

__all__ = [
    "bodies",
    "crowds",
    "fields",
    "full",
    "grammars",
    "legal",
    "memory",
    "prompts",
    "readers",
    "slow",
    "upgrades",
]

"""Every attack, registered by importing its file."""

from tests.siege.attacks import bodies, crowds, full, legal, memory, prompts, readers, slow, upgrades

__all__ = ["bodies", "crowds", "full", "legal", "memory", "prompts", "readers", "slow", "upgrades"]

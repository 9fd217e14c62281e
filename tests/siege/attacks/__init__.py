"""Every attack, registered by importing its file."""

from tests.siege.attacks import bodies, crowds, memory, prompts, readers, slow, upgrades

__all__ = ["bodies", "crowds", "memory", "prompts", "readers", "slow", "upgrades"]

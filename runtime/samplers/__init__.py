"""Acceptance rules, one file each. Importing this package registers them; add yours with one line here."""

from runtime.samplers import edit, fixed, threshold
from runtime.samplers.base import BlockBatch, Decision, Rule, Stat, get_rule, register_rule, rules

__all__ = [
    "BlockBatch", "Decision", "Rule", "Stat", "edit", "fixed", "get_rule", "register_rule", "rules", "threshold",
]  # fmt: skip

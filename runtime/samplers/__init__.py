"""Acceptance rules, one file each. Importing this package registers them; add yours with one line here."""

from runtime.samplers import (
    credit,
    dynamic,
    edit,
    entropy_bound,
    factor,
    fixed,
    hierarchical,
    local_leap,
    noise,
    sequential,
    threshold,
)
from runtime.samplers.base import BlockBatch, Decision, Rule, Stat, get_rule, register_rule, rules

__all__ = [
    "BlockBatch",
    "Decision",
    "Rule",
    "Stat",
    "credit",
    "dynamic",
    "edit",
    "entropy_bound",
    "factor",
    "fixed",
    "get_rule",
    "hierarchical",
    "local_leap",
    "noise",
    "register_rule",
    "rules",
    "sequential",
    "threshold",
]

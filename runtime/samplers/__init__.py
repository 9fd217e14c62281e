"""Acceptance rules, one file each. Importing this package registers them; add yours with one line here."""

from runtime.samplers import (
    credit,
    dynamic,
    edit,
    entropy_bound,
    factor,
    fixed,
    hierarchical,
    insert_delete,
    local_leap,
    noise,
    sequential,
    threshold,
)
from runtime.samplers.base import BlockBatch, Decision, Orders, Rule, Stat, get_rule, register_rule, rules, rules_under

__all__ = [
    "BlockBatch",
    "Decision",
    "Orders",
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
    "insert_delete",
    "local_leap",
    "noise",
    "register_rule",
    "rules",
    "rules_under",
    "sequential",
    "threshold",
]

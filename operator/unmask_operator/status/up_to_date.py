"""UpToDate: the pods are as this operator would make them today."""

from __future__ import annotations

from unmask_operator.objects import RESTARTED_AT
from unmask_operator.status.facts import Facts
from unmask_operator.status.verdict import Verdict, no, yes


def verdict(facts: Facts) -> Verdict | None:
    if facts.absent:
        return None
    if facts.plan.up_to_date:
        return yes("UpToDate", "the pods are as this operator makes them")
    return no(
        "OperatorUpgraded",
        "this operator would make the pods otherwise and leaves them alone; the next edit that changes them, or a new "
        f"value of the annotation {RESTARTED_AT}, adopts the new form",
    )

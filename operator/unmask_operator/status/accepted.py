"""Accepted: the spec can be had, and the API server took every object made of it."""

from __future__ import annotations

from unmask_operator.status.facts import Facts
from unmask_operator.status.verdict import Verdict, no, sentence, unknown, yes


def verdict(facts: Facts) -> Verdict:
    refusals = sorted(facts.observed.refusals.items())
    said = [f"{ref.kind} {ref.name} was refused: {reason}" for ref, reason in refusals]
    if said:
        return no("Refused", "; ".join(said))
    failed = [f"{ref.kind} {ref.name}: {reason}" for ref, reason in sorted(facts.observed.failures.items())]
    if failed:
        return unknown("ApiError", f"the API server failed on {'; '.join(failed)}; it is tried again")
    valid = "the spec is valid and applied"
    if fields := ", ".join(facts.plan.ignored):
        return yes("Accepted", sentence(f"{valid}, but for what this operator does not know and ignores: {fields}"))
    return yes("Accepted", valid)

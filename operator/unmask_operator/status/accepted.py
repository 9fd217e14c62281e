"""Accepted: the spec can be had, and the API server took every object made of it."""

from __future__ import annotations

from unmask_operator.status.facts import Facts
from unmask_operator.status.verdict import Verdict, no, yes


def verdict(facts: Facts) -> Verdict:
    refusals = sorted(facts.observed.refusals.items())
    said = [f"{ref.kind} {ref.name} was refused: {sentence}" for ref, sentence in refusals]
    return no("Refused", "; ".join(said)) if said else yes("Accepted", "the spec is valid and applied")

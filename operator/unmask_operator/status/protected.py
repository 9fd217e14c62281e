"""Protected: clients of a service with an address of its own need a key. Of others the cluster's network decides."""

from __future__ import annotations

from unmask_operator.status.facts import Facts, section
from unmask_operator.status.verdict import Verdict, no, yes


def verdict(facts: Facts) -> Verdict | None:
    if section(facts.spec, "service").get("type") != "LoadBalancer":
        return None
    if section(facts.spec, "auth"):
        return yes("KeyRequired", "clients need a key of spec.auth")
    return no(
        "NoAuth",
        "spec.service.type is LoadBalancer without spec.auth: whoever reaches the address is served; set spec.auth",
    )

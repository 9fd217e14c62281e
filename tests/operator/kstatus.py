"""Rules of kstatus for kinds without built-in rules, written from its published convention, as an oracle."""

from __future__ import annotations

from unmask_operator.objects import Obj

TERMINATING, IN_PROGRESS, FAILED, CURRENT = "Terminating", "InProgress", "Failed", "Current"


def kstatus(resource: Obj) -> str:
    """Returns the status that Flux and Helm 4 compute for a resource.

    The rules apply in this order. A resource with a deletionTimestamp is terminating. With a status of another
    generation, or with Reconciling, it is in progress. With Stalled it has failed. If Ready is not True it is in
    progress. Otherwise it is current.
    """
    metadata, status = resource["metadata"], resource.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return TERMINATING
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata.get("generation"):
        return IN_PROGRESS
    states = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    if states.get("Reconciling") == "True":
        return IN_PROGRESS
    if states.get("Stalled") == "True":
        return FAILED
    return CURRENT if states.get("Ready", "True") == "True" else IN_PROGRESS

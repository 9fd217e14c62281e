"""The rules of kstatus for a kind that it does not know, written from its published convention, as an oracle."""

from __future__ import annotations

from unmask_operator.objects import Obj

TERMINATING, IN_PROGRESS, FAILED, CURRENT = "Terminating", "InProgress", "Failed", "Current"


def kstatus(resource: Obj) -> str:
    """What Flux and Helm 4 make of a resource.

    In this order: one that is being deleted is terminating; a status of another generation, or Reconciling, is in
    progress; Stalled has failed; a Ready that is not True is in progress; all else is current.
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

"""Stalled, by which kstatus tells a resource that failed from one that is in progress.

Flux and Helm 4 wait by kstatus. A resource whose Ready is not True is in progress to it, and the wait goes on until its
time limit, unless Stalled is True, which ends the wait. So Stalled says that nothing changes any more by itself. The
condition is present only while it is True, as kstatus' convention has it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from unmask_operator.objects import KIND
from unmask_operator.status.condition import Condition, false, true
from unmask_operator.status.pods import pod_status
from unmask_operator.status.status_input import StatusInput, number

TYPE = "Stalled"
DEADLINE = "ProgressDeadlineExceeded"
REFUSED_SECONDS = 120.0  # for which the API server refuses pods before the resource counts as stalled


def stalled(inputs: StatusInput, accepted: Condition, ready: Condition) -> Condition | None:
    """The condition; None while Ready is True or may still become so."""
    if ready.status == "True":
        return None
    cause = _cause(inputs, accepted, ready)
    return true(cause.reason, cause.message) if cause else None


def _cause(inputs: StatusInput, accepted: Condition, ready: Condition) -> Condition | None:
    """Why the resource stays as it is until somebody acts; None while it may still become Ready."""
    if accepted.status == "False":
        return None if _earlier_children_go(inputs) else accepted
    if accepted.status != "True":
        return None  # the API server gave no verdict, and the write is tried again
    if inputs.desired_zero:
        return None if inputs.pods or number(inputs.status, "replicas") else ready
    if ready.reason == "PodCreationRefused" and _refused_for_long(inputs):
        return ready
    if inputs.paused and not inputs.rolled_out:
        return false("DeploymentPaused", inputs.paused)
    progressing = pod_status.condition(inputs.deployment, "Progressing")
    exceeded = progressing.get("status") == "False" and progressing.get("reason") == DEADLINE
    if exceeded and inputs.is_observed and not inputs.rolled_out:
        return false(DEADLINE, ready.message)
    return None


def _refused_for_long(inputs: StatusInput) -> bool:
    """Whether the refusal of pods outlasts a start of a webhook and a quota that lags behind."""
    since = pod_status.condition(inputs.deployment, "ReplicaFailure").get("lastTransitionTime")
    if not since:
        return False
    return (inputs.observed.now - datetime.fromisoformat(str(since))).total_seconds() >= REFUSED_SECONDS


def _earlier_children_go(inputs: StatusInput) -> bool:
    """Whether objects of an earlier resource of this name stand in the way, which the garbage collector deletes."""
    meta = inputs.observed.resource["metadata"]

    def is_of_earlier(owner: Mapping[str, Any]) -> bool:
        same_name = (owner.get("kind"), owner.get("name")) == (KIND, meta["name"])
        return same_name and owner.get("uid") != meta["uid"]

    owners = (
        owner for child in inputs.observed.children.values() for owner in child["metadata"].get("ownerReferences") or ()
    )
    return any(map(is_of_earlier, owners))

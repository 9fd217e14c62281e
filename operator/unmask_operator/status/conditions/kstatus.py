"""Stalled: kstatus uses it to distinguish a failed resource from one in progress.

Flux and Helm 4 wait with kstatus. It treats a resource whose Ready is not True as in progress and waits until its
timeout, unless Stalled is True. So Stalled means that the resource does not change without an action of a user. The
condition is present only while it is True, which is the convention of kstatus.
"""

from unmask_operator.objects import KIND, condition, number, seconds
from unmask_operator.plan.model_fetch import finished
from unmask_operator.status.condition import Condition, false, true
from unmask_operator.status.conditions.scheduled import QUEUED
from unmask_operator.status.status_input import StatusInput
from unmask_operator.status.transitions import FETCH_FAILURES

TYPE = "Stalled"
DEADLINE = "ProgressDeadlineExceeded"
REFUSED_SECONDS = 120.0  # the resource is stalled after the API server has refused pods for this time


def stalled(inputs: StatusInput, accepted: Condition, ready: Condition) -> Condition | None:
    """Returns the condition, or None while Ready is True or may become True without an action."""
    if ready.status == "True" or ready.reason in ("Deleting", QUEUED):
        return None
    cause = _cause(inputs, accepted, ready)
    return true(cause.reason, cause.message) if cause else None


def _cause(inputs: StatusInput, accepted: Condition, ready: Condition) -> Condition | None:
    """Returns why the resource needs an action, or None while it may become Ready without one."""
    if accepted.status == "False":
        return None if _has_earlier_children(inputs) else accepted
    if accepted.status != "True":
        return None  # a request failed without a refusal, and the write is retried
    if inputs.plan.fetch and inputs.plan.fetch.job and ready.reason in FETCH_FAILURES:
        return ready if finished(inputs.plan.fetch.job) else None
    if inputs.desired_zero:
        return None if inputs.pods or number(inputs.status, "replicas") else ready
    if ready.reason == "PodCreationRefused" and _refused_for_long(inputs):
        return ready
    if inputs.paused and not inputs.rolled_out:
        return false("DeploymentPaused", inputs.paused)
    progressing = condition(inputs.deployment, "Progressing")
    exceeded = progressing.get("status") == "False" and progressing.get("reason") == DEADLINE
    if exceeded and inputs.is_observed and not inputs.rolled_out:
        return false(DEADLINE, ready.message)
    return None


def _refused_for_long(inputs: StatusInput) -> bool:
    """Returns whether pods are refused for longer than a webhook takes to start and a quota to be updated."""
    since = condition(inputs.deployment, "ReplicaFailure").get("lastTransitionTime")
    return since is not None and seconds(since, inputs.observed.now) >= REFUSED_SECONDS


def _has_earlier_children(inputs: StatusInput) -> bool:
    """Returns whether a child of an earlier resource of this name exists, which the garbage collector deletes."""
    observed, children = inputs.observed, inputs.observed.children.values()
    owners = (owner for child in children for owner in child["metadata"].get("ownerReferences") or ())
    same_name = (owner for owner in owners if (owner.get("kind"), owner.get("name")) == (KIND, observed.name))
    return any(owner.get("uid") != observed.uid for owner in same_name)

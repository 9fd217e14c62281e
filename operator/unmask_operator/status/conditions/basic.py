"""Evaluates the conditions that need one function each."""

from collections.abc import Mapping

from unmask_operator.objects import RESTARTED_AT, number, section
from unmask_operator.render.model import IMAGES_UNAVAILABLE
from unmask_operator.status import admission
from unmask_operator.status.condition import Condition, false, sentence, true, unknown
from unmask_operator.status.conditions import rollout_complete, scheduled
from unmask_operator.status.pods import pod_status
from unmask_operator.status.status_input import StatusInput
from unmask_operator.status.transitions import EXPECTED_REASONS

TWO_OPERATORS, API_ERROR = "TwoOperators", "ApiError"  # reasons of a condition
# Conditions that Ready needs. The others are not among them: the Service serves requests while they are False, except
# those of an adapter that failed to load.
NEEDED = ("Accepted", "ModelCached", "Scheduled", "ModelLoaded", "RolloutComplete", "Available")


def accepted(inputs: StatusInput) -> Condition:
    """Evaluates Accepted: the spec is valid, and the API server accepted all children."""
    if operators := inputs.observed.operators:
        return unknown(TWO_OPERATORS, releases=" and ".join(operators))
    refusals, failures = sorted(inputs.observed.refusals.items()), sorted(inputs.observed.failures.items())
    refused = "; ".join(f"{ref.kind} {ref.name} was refused: {reason}" for ref, reason in refusals)
    failed = "; ".join(f"{ref.kind} {ref.name}: {reason}" for ref, reason in failures)
    failed = f"the API server failed on {failed}; the operator retries" if failed else ""
    if refused:
        if IMAGES_UNAVAILABLE in refused:
            return false("ImageVolumesUnavailable", refused)
        return false("Refused", f"{refused}; {failed}" if failed else refused)
    if failed:
        return unknown(API_ERROR, failed)
    valid = "the spec is valid and applied"
    if fields := ", ".join(inputs.plan.ignored):
        valid += f", except fields that this operator does not know and ignores: {fields}"
    if values := "; ".join(inputs.plan.unread.values()):
        valid += f"; objects that depend on a value it does not know are not changed: {values}"
    return true("Accepted", sentence(valid))


def model_loaded(inputs: StatusInput) -> Condition | None:
    """Evaluates ModelLoaded: pods of the newest template have loaded their model.

    A pod that scaling adds may still load. All pods of a rollout must have loaded it.
    """
    if inputs.desired_zero or inputs.never_created:
        return None
    if inputs.trouble:
        return inputs.trouble
    started = [pod_status.is_started(pod) for pod in inputs.engines]
    if unstable := inputs.observed.unstable:
        return false("GroupUnstable", unstable)
    if any(started) and (all(started) or inputs.rolled_out):
        return true("Loaded")
    if load := inputs.slowest_load:
        return false("Loading", f"the model is being loaded: {load.phase}, {load.percent:.0f} %")
    if any(pod_status.runs(pod) and not pod_status.is_started(pod) for pod in inputs.engines):
        return false("Starting")
    initializing = next(filter(None, map(pod_status.initializing, inputs.pods)), None)
    return false("Pending", f"the engine has not started yet{f': {initializing}' if initializing else ''}")


def up_to_date(inputs: StatusInput) -> Condition | None:
    """Evaluates UpToDate: the pods have the template that this operator renders."""
    if inputs.never_created:
        return None
    rollout = None if inputs.rolled_out else rollout_complete.evaluate(inputs)
    has_newest = number(inputs.status, "updatedReplicas") > 0 and not inputs.has_outdated_pods
    if rollout and inputs.paused and not has_newest:
        return false("DeploymentPaused", f"the pods are not of the newest template: {inputs.paused}")
    if not inputs.plan.up_to_date:
        return false("OperatorUpgraded", annotation=RESTARTED_AT)
    if rollout and inputs.has_outdated_pods:
        return false(rollout.reason, f"some pods are of an older template: {rollout.message}")
    return true("UpToDate", sentence(admission.pods_sentence(inputs.pods, inputs.deployment, inputs.plan)))


def protected(inputs: StatusInput) -> Condition | None:
    """Evaluates Protected: clients of a service with an external address need a key."""
    if section(inputs.spec, "service").get("type") != "LoadBalancer":
        return None
    if section(inputs.spec, "auth"):
        return true("KeyRequired")
    return false("NoAuth")


def available(inputs: StatusInput) -> Condition:
    """Evaluates Available: at least one pod, of any revision, is Ready."""
    if inputs.ready_pods:
        return true("Serving")
    if inputs.suspended:
        return false("Suspended")
    if inputs.never_created:
        return false("NotAccepted")
    if inputs.asleep:
        return true("Asleep")
    if inputs.desired == 0:
        return false("NoReplicas")
    if found := scheduled.obstacle(inputs) or inputs.trouble:
        return found
    if inputs.waking:
        return false("Waking", cause="no pod is Ready")
    if cause := rollout_complete.unready(inputs):
        return cause
    return false("NoReadyPods")


def ready(inputs: StatusInput, others: Mapping[str, Condition]) -> Condition:
    """Evaluates Ready: all conditions that serving needs are True. The reason is that of the first one that is not."""
    suspended, metadata = inputs.suspended, inputs.observed.resource["metadata"]
    if metadata.get("deletionTimestamp"):
        return false("Deleting", finalizers=", ".join(metadata.get("finalizers") or ()))
    if suspended and others["Accepted"].status == "True":
        return false("Suspended")
    for condition in NEEDED:
        found = others.get(condition)
        if found and found.status != "True":
            if inputs.waking and found.reason in EXPECTED_REASONS:
                return false("Waking", cause=found.message)
            return Condition("False", found.reason, found.message)
    return true("Asleep" if inputs.asleep else "Ready")

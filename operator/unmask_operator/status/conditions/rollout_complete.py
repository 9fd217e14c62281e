"""RolloutComplete: all pods are of the newest template, and all were Ready at least once."""

from unmask_operator.objects import condition, number, section
from unmask_operator.status.condition import Condition, false, true
from unmask_operator.status.conditions import model_cached, scheduled
from unmask_operator.status.pods import pod_status
from unmask_operator.status.status_input import StatusInput


def evaluate(inputs: StatusInput) -> Condition | None:
    if inputs.desired_zero or inputs.never_created:
        return None
    if model_cached.is_waiting(inputs):
        return false("Waiting", "the rollout starts when the model is in its claim (ModelCached)")
    if inputs.rolled_out:
        paused = f"; {inputs.paused}" if inputs.paused else ""
        return true("Complete", f"every pod is of the newest template{paused}")
    if found := scheduled.obstacle(inputs) or inputs.trouble:
        return _paused(inputs, found.message) or found
    cause = unready(inputs)
    if found := _paused(inputs, cause.message if cause else ""):
        return found
    progressing = condition(inputs.deployment, "Progressing")
    if progressing.get("status") == "False":
        more = f"; {cause.message}" if cause else ""
        return false("ProgressDeadlineExceeded", f"{progressing.get('message', 'the rollout takes too long')}{more}")
    return false("Progressing", _progress(inputs, cause))


def _paused(inputs: StatusInput, cause: str) -> Condition | None:
    if not inputs.paused:
        return None
    more = f"; {cause}" if cause else ""
    return false("DeploymentPaused", f"the newest template is not rolled out: {inputs.paused}{more}")


def _progress(inputs: StatusInput, cause: Condition | None) -> str:
    if not inputs.is_observed:
        generation = number(section(inputs.deployment, "metadata"), "generation")
        hint = "if this lasts, check kube-controller-manager"
        return f"the Deployment controller has not observed generation {generation} of the Deployment yet; {hint}"
    updated = number(inputs.status, "updatedReplicas")
    old = number(inputs.status, "replicas") - updated
    remaining = f", {old} of an older one remain{'s' if old == 1 else ''}" if old > 0 else ""
    # The readiness probe fails for a moment after each start, which would only change the message twice.
    more = f"; {cause.message}" if cause and cause.reason != pod_status.PROBE_FAILED else ""
    replicas = "pods" if inputs.nodes == 1 else "groups"
    return f"{updated} of {inputs.desired} {replicas} are of the newest template{remaining}{more}"


def unready(inputs: StatusInput) -> Condition | None:
    """Returns why the first pod with a loaded model is not Ready, or None."""
    return next((found for pod in inputs.pods if (found := pod_status.unready(pod))), None)

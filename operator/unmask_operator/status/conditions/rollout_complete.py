"""RolloutComplete: every pod is of the newest template, and at least once all of them were ready."""

from unmask_operator.status.condition import Verdict, no, yes
from unmask_operator.status.conditions import scheduled
from unmask_operator.status.pods import pod_status, readiness
from unmask_operator.status.status_input import Facts, number, section


def verdict(facts: Facts) -> Verdict | None:
    if facts.idle or facts.absent:
        return None
    if facts.rolled_out:
        paused = f"; {facts.paused}" if facts.paused else ""
        return yes("Complete", f"every pod is of the newest template{paused}")
    if found := scheduled.obstacle(facts) or facts.trouble:
        return _paused(facts, found.message) or found
    cause = unready(facts)
    if found := _paused(facts, cause.message if cause else ""):
        return found
    progressing = pod_status.condition(facts.deployment, "Progressing")
    if progressing.get("status") == "False":
        more = f"; {cause.message}" if cause else ""
        return no("ProgressDeadlineExceeded", f"{progressing.get('message', 'the rollout takes too long')}{more}")
    return no("Progressing", _progress(facts, cause))


def _paused(facts: Facts, cause: str) -> Verdict | None:
    if not facts.paused:
        return None
    return no(
        "DeploymentPaused", f"the newest template is not rolled out: {facts.paused}{f'; {cause}' if cause else ''}"
    )


def _progress(facts: Facts, cause: Verdict | None) -> str:
    if not facts.is_observed:
        generation = number(section(facts.deployment, "metadata"), "generation")
        return (
            f"the Deployment controller has not observed generation {generation} of the Deployment yet; if this "
            "lasts, check kube-controller-manager"
        )
    updated = number(facts.status, "updatedReplicas")
    old = number(facts.status, "replicas") - updated
    waits = f", {old} of the old one serve on" if old > 0 else ""
    # The readiness probe fails for a moment after each start, which would only change the message twice.
    more = f"; {cause.message}" if cause and cause.reason != readiness.PROBE_FAILED else ""
    return f"{updated} of {facts.desired} pods are of the newest template{waits}{more}"


def unready(facts: Facts) -> Verdict | None:
    """Why the first pod that has loaded its model is not Ready."""
    return next((found for pod in facts.pods if (found := readiness.unready(pod))), None)

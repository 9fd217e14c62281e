"""RolloutComplete: every pod is of the newest template, and at least once all of them were ready."""

from __future__ import annotations

from unmask_operator.status import pods as pod_facts
from unmask_operator.status import scheduled
from unmask_operator.status.facts import Facts, number
from unmask_operator.status.verdict import Verdict, no, yes


def verdict(facts: Facts) -> Verdict | None:
    if facts.idle or facts.absent:
        return None
    if facts.rolled_out:
        return yes("Complete", "every pod is of the newest template")
    if found := scheduled.obstacle(facts):
        return found
    if facts.trouble:
        return no(facts.trouble.reason, facts.trouble.message)
    progressing = facts.deployment_condition("Progressing")
    cause = unready(facts)
    if progressing.get("status") == "False":
        more = f"; {cause}" if cause else ""
        return no("ProgressDeadlineExceeded", f"{progressing.get('message', 'the rollout takes too long')}{more}")
    updated = number(facts.status, "updatedReplicas")
    old = number(facts.status, "replicas") - updated
    waits = f", {old} of the old one serve on" if old > 0 else ""
    return no("Progressing", f"{updated} of {facts.desired} pods are of the newest template{waits}")


def unready(facts: Facts) -> str | None:
    """A pod whose model is loaded and whose readiness probe fails all the same."""
    for pod in facts.pods:
        if pod_facts.is_started(pod) and not pod_facts.is_ready(pod):
            return f"pod {pod_facts.name(pod)} has loaded its model, but its readiness probe (/ready) fails"
    return None

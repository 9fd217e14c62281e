"""Available: at least one pod, of any revision, takes requests."""

from __future__ import annotations

from unmask_operator.status import rollout_complete, scheduled
from unmask_operator.status.facts import Facts
from unmask_operator.status.verdict import Verdict, no, yes


def verdict(facts: Facts) -> Verdict:
    if facts.ready_pods:
        return yes("Serving", "at least one pod takes requests")
    if facts.suspended:
        return no("Suspended", "spec.suspend is true: no engine runs; set it to false to serve again")
    if facts.absent:
        return no("NotAccepted", "nothing runs, for the spec has not been accepted")
    if facts.desired == 0:
        return no("NoReplicas", "spec.replicas is 0: no engine is asked for")
    if found := scheduled.obstacle(facts):
        return found
    if facts.trouble:
        return no(facts.trouble.reason, facts.trouble.message)
    if cause := rollout_complete.unready(facts):
        return no("ReadinessProbeFailed", cause)
    return no("NoReadyPods", "no pod is Ready")

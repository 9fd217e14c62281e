"""ScalingReady: whoever scales sees enough to do so, and gets the replicas. Only with `spec.autoscaling`, or while
replicas that were added beside those that serve cannot be had."""

from unmask_operator.objects import controller_uid
from unmask_operator.status.condition import Verdict, no, unknown, yes
from unmask_operator.status.conditions import scheduled
from unmask_operator.status.pods.pod_status import condition
from unmask_operator.status.status_input import Facts, section

TYPE = "ScalingReady"


def verdict(facts: Facts) -> Verdict | None:
    scaling = section(facts.spec, "autoscaling")
    if facts.idle or facts.absent:
        return None
    if strange := facts.plan.unread.get("autoscaling"):
        return unknown("UnknownValue", f"whoever scales, this operator does not know how: {strange}")
    found = (_hpa(facts) if scaling.get("provider") == "HPA" else _builtin(facts)) if scaling else None
    if found and found.status == "False":
        return found
    return (scheduled.obstacle(facts) if facts.grows else None) or found


def _builtin(facts: Facts) -> Verdict:
    decision = facts.observed.decision
    if decision is None:
        return _as_it_was(facts) or unknown("Waiting", "the autoscaler has not looked at the pods yet")
    if decision.healthy:
        return yes("Active", "the operator reads the pods' metrics")
    return no("MetricsMissing", decision.reason)


def _as_it_was(facts: Facts) -> Verdict | None:
    """A new leader has no decision yet and no news either."""
    old = condition(facts.observed.service, TYPE)
    known = old.get("reason") in ("Active", "MetricsMissing")
    return Verdict(old["status"], old["reason"], old["message"]) if known else None


def _hpa(facts: Facts) -> Verdict:
    uid = facts.observed.service["metadata"]["uid"]
    children = facts.observed.children.items()
    hpa = next((o for ref, o in children if ref.kind == "HorizontalPodAutoscaler" and controller_uid(o) == uid), None)
    if hpa is None:
        return unknown("Waiting", "the HorizontalPodAutoscaler is not there yet")
    conditions = {c["type"]: c for c in section(hpa, "status").get("conditions") or ()}
    for kind in ("AbleToScale", "ScalingActive"):
        found = conditions.get(kind, {})
        if found.get("status") == "False":
            reason = str(found.get("reason") or f"Not{kind}")  # the API requires neither a reason nor a message
            return no(reason, str(found.get("message") or reason))
    if "ScalingActive" not in conditions:
        return unknown("Waiting", "the HorizontalPodAutoscaler has not looked at the metrics yet")
    return yes("Active", "the HorizontalPodAutoscaler reads the pods' metrics")

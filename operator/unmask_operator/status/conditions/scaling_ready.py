"""ScalingReady: the autoscaler has its metrics, and its replicas can be created.

The condition is present with `spec.autoscaling`, and while further replicas of a serving resource cannot be created.
"""

from collections.abc import Mapping

from unmask_operator.kinds import AUTOSCALERS, SCALED_OBJECTS
from unmask_operator.objects import Obj, condition, section
from unmask_operator.plan.other_writers import other_scaler
from unmask_operator.render.labels import engine_name
from unmask_operator.status.condition import Condition, false, true, unknown
from unmask_operator.status.conditions import scheduled
from unmask_operator.status.status_input import StatusInput

TYPE = "ScalingReady"


def evaluate(inputs: StatusInput) -> Condition | None:
    scaling = section(inputs.spec, "autoscaling")
    if (inputs.desired_zero and not inputs.asleep) or inputs.never_created:
        return None
    if unread := inputs.plan.unread.get("autoscaling"):
        return unknown("UnknownValue", error=unread)
    if found := _other_writer(inputs) if scaling else None:
        return found
    evaluate_provider = {"HPA": _hpa, "KEDA": _keda}.get(scaling.get("provider", ""), _builtin)
    found = evaluate_provider(inputs) if scaling else None
    if found and found.status == "False":
        return found
    return (scheduled.obstacle(inputs) if inputs.scaling_up else None) or found


def _other_writer(inputs: StatusInput) -> Condition | None:
    """Returns the condition for replicas that another scaler, or a manifest, writes beside the autoscaler."""
    if manager := other_scaler(inputs.observed):
        return false("AnotherScaler", manager=manager)
    if manager := inputs.observed.replicas_manager:
        return false("ReplicasOverwritten", manager=manager)
    return None


def _builtin(inputs: StatusInput) -> Condition:
    decision = inputs.observed.decision
    if decision is None:
        return _previous_condition(inputs) or unknown("Waiting", "the autoscaler has not read the pods' metrics yet")
    if decision.healthy:
        return true("Active", autoscaler="operator")
    return false(decision.cause, decision.reason)


def _previous_condition(inputs: StatusInput) -> Condition | None:
    """Returns the old condition, which is valid until a new leader has its first decision."""
    old = condition(inputs.observed.resource, TYPE)
    known = old.get("reason") in ("Active", "MetricsMissing", "ActivatorUnavailable")
    return Condition(old["status"], old["reason"], old["message"]) if known else None


def _hpa(inputs: StatusInput) -> Condition:
    hpa = inputs.observed.own(AUTOSCALERS, engine_name(inputs.observed.name))
    if not hpa:
        return unknown("Waiting", "the HorizontalPodAutoscaler does not exist yet")
    conditions = {c["type"]: c for c in section(hpa, "status").get("conditions") or ()}
    if failures := _failures(conditions, "AbleToScale", "ScalingActive"):
        return failures[0]
    if "ScalingActive" not in conditions:
        return unknown("Waiting", "the HorizontalPodAutoscaler has not read the metrics yet")
    return true("Active", autoscaler="HorizontalPodAutoscaler")


def _keda(inputs: StatusInput) -> Condition:
    """Returns KEDA's own reason and message unless it scales.

    Without a Ready pod the triggers of targets have nothing to read. At 0 replicas this error is normal.
    """
    live = inputs.observed.own(SCALED_OBJECTS, engine_name(inputs.observed.name))
    if not live:
        return unknown("Waiting", "the ScaledObject does not exist yet")
    conditions = {c["type"]: c for c in section(live, "status").get("conditions") or ()}
    if conditions.get("Paused", {}).get("status") == "True":
        message = conditions["Paused"].get("message") or "the ScaledObject is paused"
        return false("ScaledObjectPaused", f"{message}: remove its annotations autoscaling.keda.sh/paused*")
    ready = conditions.get("Ready", {})
    if ready.get("status") not in ("True", "False"):
        return unknown("Waiting", "KEDA has not handled the ScaledObject yet; check that its operator runs")
    for failure in _failures(conditions, "Ready", "HPAActive"):
        if not (inputs.asleep and failure.reason == "TriggerError"):
            return failure
    return true("Active", "KEDA scales the service")


def _failures(conditions: Mapping[str, Obj], *kinds: str) -> list[Condition]:
    """Returns the conditions that are False. The schemas require neither a reason nor a message."""
    failed = {kind: conditions[kind] for kind in kinds if conditions.get(kind, {}).get("status") == "False"}
    reasons = {kind: str(one.get("reason") or f"Not{kind}") for kind, one in failed.items()}
    return [false(reason, str(failed[kind].get("message") or reason)) for kind, reason in reasons.items()]

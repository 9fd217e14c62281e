"""The part of ScalingReady that provider KEDA determines, from the conditions of the ScaledObject."""

from unmask_operator.objects import section
from unmask_operator.render.labels import engine_name
from unmask_operator.status.condition import Condition, false, true, unknown
from unmask_operator.status.status_input import StatusInput


def evaluate(inputs: StatusInput) -> Condition:
    """Returns KEDA's own reason and message unless it scales.

    Without a Ready pod the triggers of targets have nothing to read. At 0 replicas this error is normal.
    """
    live = inputs.observed.own("keda.sh/v1alpha1", "ScaledObject", engine_name(inputs.observed.name))
    if not live:
        return unknown("Waiting", "the ScaledObject does not exist yet")
    conditions = {c["type"]: c for c in section(live, "status").get("conditions") or ()}
    if conditions.get("Paused", {}).get("status") == "True":
        message = conditions["Paused"].get("message") or "the ScaledObject is paused"
        return false("ScaledObjectPaused", f"{message}: remove its annotations autoscaling.keda.sh/paused*")
    ready = conditions.get("Ready", {})
    if ready.get("status") not in ("True", "False"):
        return unknown("Waiting", "KEDA has not handled the ScaledObject yet; check that its operator runs")
    for kind in ("Ready", "HPAActive"):
        found = conditions.get(kind, {})
        reason = str(found.get("reason") or f"Not{kind}")  # KEDA's schema requires neither a reason nor a message
        if found.get("status") == "False" and not (inputs.asleep and reason == "TriggerError"):
            return false(reason, str(found.get("message") or reason))
    return true("Active", "KEDA scales the service")

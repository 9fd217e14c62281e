"""Children whose kind the cluster may lack, or whose permissions the chart may not grant."""

from unmask_operator import kinds
from unmask_operator.objects import Obj
from unmask_operator.plan.observed import Observed
from unmask_operator.settings import Settings

MISSING_CRD, NOT_ENABLED = "MissingCRD", "NotEnabled"  # reasons of a condition
# The type of the condition that reports the absence, the field of the spec that asks for the kind, and the fix. With
# "Accepted", no child of the spec is written.
KINDS = {
    kinds.POD_MONITORS: ("UpToDate", "spec.monitoring.podMonitor", "install the Prometheus operator"),
    kinds.SCALED_OBJECTS: ("ScalingReady", "spec.autoscaling.provider", "install KEDA"),
    kinds.CLAIM_TEMPLATES: ("Accepted", "spec.gpu.deviceClassName", "upgrade it to Kubernetes 1.34 or newer"),
    kinds.LEADER_WORKER_SETS: ("Accepted", "spec.parallelism.nodes", "install LeaderWorkerSet"),
    kinds.HTTP_ROUTES: ("RouteReady", "spec.route", "install the Gateway API"),
    kinds.INFERENCE_POOLS: ("RouteReady", "spec.inferencePool", "install the Gateway API Inference Extension"),
}


def problem_of(child: Obj, observed: Observed, settings: Settings) -> tuple[str, str, str] | None:
    """Returns the condition, reason and message for a child that cannot be written; None if it can be."""
    kind = kinds.kind_of(child["apiVersion"], child["kind"])
    if kind not in KINDS:
        return None
    (condition, field, fix), value = KINDS[kind], kinds.GRANTED.get(kind)
    if value and not getattr(settings, value):
        fix = f"set {value}.enabled of the operator's chart, or remove the field"
        return condition, NOT_ENABLED, f"{field}: the operator has no permission for the kind {kind.kind}; {fix}"
    if kind.api in observed.apis:
        return None
    absence = f"the CustomResourceDefinition {kind.plural}.{kind.group} is not installed"
    if kind == kinds.CLAIM_TEMPLATES:  # a kind of Kubernetes itself
        absence = f"the cluster does not serve {kind.api}"
    return condition, MISSING_CRD, f"{field}: {absence}; {fix} or remove the field"

"""Children whose kind the cluster may lack, or whose permissions the chart may not grant."""

from dataclasses import dataclass

from unmask_operator.objects import Obj
from unmask_operator.plan.autoscaling import SCALED_OBJECT
from unmask_operator.plan.observed import Observed
from unmask_operator.render.children import PODMONITOR
from unmask_operator.render.devices import CLAIMTEMPLATE
from unmask_operator.render.route import HTTPROUTE, INFERENCEPOOL
from unmask_operator.settings import Settings

MISSING_CRD, NOT_ENABLED = "MissingCRD", "NotEnabled"  # reasons of a condition


@dataclass(frozen=True)
class OptionalKind:
    """A kind that not every cluster has.

    Attributes:
        condition: type of the condition that reports its absence. With "Accepted", no child of the spec is written.
        field: the field of the spec that asks for it.
        absence: what the cluster lacks.
        fix: what installs it.
        value: value of the chart that grants permissions on it, and name of the setting; "": always granted.
    """

    condition: str
    field: str
    absence: str
    fix: str
    value: str = ""


def _crd(condition: str, field: str, name: str, origin: str, value: str = "") -> OptionalKind:
    absence = f"the CustomResourceDefinition {name} is not installed"
    return OptionalKind(condition, field, absence, f"install {origin}", value)


KINDS = {
    PODMONITOR: _crd(
        "UpToDate", "spec.monitoring.podMonitor", "podmonitors.monitoring.coreos.com", "the Prometheus operator"
    ),
    "/".join(SCALED_OBJECT): _crd("ScalingReady", "spec.autoscaling.provider", "scaledobjects.keda.sh", "KEDA", "keda"),
    CLAIMTEMPLATE: OptionalKind(
        "Accepted",
        "spec.gpu.deviceClassName",
        f"the cluster does not serve {CLAIMTEMPLATE}",
        "upgrade it to Kubernetes 1.34 or newer",
        "dra",
    ),
    HTTPROUTE: _crd("RouteReady", "spec.route", "httproutes.gateway.networking.k8s.io", "the Gateway API", "gateway"),
    INFERENCEPOOL: _crd(
        "RouteReady",
        "spec.inferencePool",
        "inferencepools.inference.networking.k8s.io",
        "the Gateway API Inference Extension",
        "gateway",
    ),
}


def problem_of(child: Obj, observed: Observed, settings: Settings) -> tuple[str, str, str] | None:
    """Returns the condition, reason and message for a child that cannot be written; None if it can be."""
    api = f"{child['apiVersion']}/{child['kind']}"
    kind = KINDS.get(api)
    if kind is None:
        return None
    if kind.value and not getattr(settings, kind.value):
        fix = f"set {kind.value}.enabled of the operator's chart, or remove the field"
        sentence = f"{kind.field}: the operator has no permission for the kind {child['kind']}; {fix}"
        return kind.condition, NOT_ENABLED, sentence
    if api not in observed.apis:
        return kind.condition, MISSING_CRD, f"{kind.field}: {kind.absence}; {kind.fix} or remove the field"
    return None

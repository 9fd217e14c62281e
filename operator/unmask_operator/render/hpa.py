"""The HorizontalPodAutoscaler. It scales the resource itself, whose replicas the operator copies to the workload."""

from __future__ import annotations

from unmask_operator.api import DiffusionLMService
from unmask_operator.api.autoscaling import DEFAULT_TARGETS, GAUGES, Targets
from unmask_operator.objects import API_VERSION, KIND, Obj
from unmask_operator.render.names import child, engine


def hpa(service: DiffusionLMService) -> Obj | None:
    """The HorizontalPodAutoscaler; None unless the spec asks for that provider."""
    scaling = service.spec.autoscaling
    if scaling is None or scaling.provider != "HPA":
        return None
    spec = {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": service.name},
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": _metrics(scaling.targets),
    }
    if scaling.behavior:
        spec["behavior"] = scaling.behavior.model_dump(by_alias=True, exclude_none=True)
    return child(service, "autoscaling/v2", "HorizontalPodAutoscaler", engine(service.name), spec=spec)


def _metrics(targets: Targets) -> list[Obj]:
    """One a target, by the runtime's gauge; a percentage is its share in thousandths."""
    wanted: dict[str, int] = targets.model_dump(by_alias=True, exclude_none=True) or DEFAULT_TARGETS
    return [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": gauge},
                "target": {"type": "AverageValue", "averageValue": _average(wanted[name], unit)},
            },
        }
        for name, (gauge, unit) in GAUGES.items()
        if name in wanted
    ]


def _average(target: int, unit: int) -> str:
    return str(target) if unit == 1 else f"{target * 1000 // unit}m"

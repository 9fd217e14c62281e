"""The HorizontalPodAutoscaler. It scales the resource itself, whose replicas the operator copies to the workload."""

from __future__ import annotations

from unmask_operator.api import DiffusionLMService
from unmask_operator.api.autoscaling import Targets
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
    return child(
        "autoscaling/v2", "HorizontalPodAutoscaler", service.name, engine(service.name), service.namespace, spec=spec
    )


def _metrics(targets: Targets) -> list[Obj]:
    """One a target, in the runtime's metric names; a percentage is its share in thousandths."""
    kv = targets.kv_cache_utilization_percent
    averages = {
        "unmask_requests_waiting": targets.queued_requests_per_replica,
        "unmask_requests_running": targets.running_requests_per_replica,
        "unmask_kv_usage_ratio": f"{kv * 10}m" if kv else None,
    }
    return [
        {
            "type": "Pods",
            "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": str(average)}},
        }
        for name, average in averages.items()
        if average is not None
    ]

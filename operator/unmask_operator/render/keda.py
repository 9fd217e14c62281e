"""Renders the ScaledObject of provider KEDA.

KEDA scales the custom resource, as a HorizontalPodAutoscaler does. Its trigger `metrics-api` reads the pods' metrics
without Prometheus.
"""

from unmask_operator.api import DiffusionLMService
from unmask_operator.api.autoscaling import DEFAULT_TARGETS, GAUGES, KEDA_POLLING_SECONDS, Autoscaling, Keda
from unmask_operator.objects import API_VERSION, KIND, Obj
from unmask_operator.render.labels import PORT, child, engine_name

FAILED_POLLS = 3  # before the fallback
RUNNING = "runningRequestsPerReplica"
NEVER_REACHED = 1_000_000  # a target that only keeps the last replica while the trigger is active


def scaled_object(resource: DiffusionLMService, scale_down_seconds: int) -> Obj | None:
    """Renders the ScaledObject; None for another provider or while suspended.

    Args:
        resource: the parsed resource.
        scale_down_seconds: stabilization window of scale-down if the spec has none. It also delays the last scale-down
            to 0.
    """
    scaling = resource.spec.autoscaling
    if scaling is None or scaling.provider != "KEDA" or resource.spec.suspend:
        return None
    behavior = scaling.behavior.model_dump(by_alias=True, exclude_none=True) if scaling.behavior else {}
    down = {"stabilizationWindowSeconds": scale_down_seconds, **behavior.get("scaleDown", {})}
    keda = scaling.keda or Keda()
    spec: Obj = {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": resource.name},
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        "pollingInterval": scaling.polling_interval_seconds or KEDA_POLLING_SECONDS,
        "cooldownPeriod": down["stabilizationWindowSeconds"],
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {**behavior, "scaleDown": down}}},
        "triggers": [*_targets(resource, scaling), *keda.triggers],
    }
    if keda.fallback_replicas is not None:
        spec["fallback"] = {"failureThreshold": FAILED_POLLS, "replicas": keda.fallback_replicas}
    return child(resource, "keda.sh/v1alpha1", "ScaledObject", engine_name(resource.name), spec=spec)


def _targets(resource: DiffusionLMService, scaling: Autoscaling) -> list[Obj]:
    """Renders a trigger per target. Percentages are converted to the gauge's unit.

    With `minReplicas` 0, running requests keep the last replica, also if nothing waits.
    """
    own = scaling.keda and scaling.keda.triggers
    targets: dict[str, int] = scaling.targets.model_dump(by_alias=True, exclude_none=True)
    targets = targets or ({} if own else DEFAULT_TARGETS)
    if not scaling.min_replicas:
        targets = {RUNNING: NEVER_REACHED, **targets}
    return [
        _trigger(resource, gauge, f"{targets[name] / unit:g}" if unit > 1 else str(targets[name]))
        for name, (gauge, unit) in GAUGES.items()
        if name in targets
    ]


def _trigger(resource: DiffusionLMService, gauge: str, target: str) -> Obj:
    """Renders a trigger on the sum of a gauge over the Ready pods.

    KEDA takes the names of the Service and its namespace from the host, and the pods' port from the port. It splits
    host and port at dots, so the label before the port must not be the namespace.
    """
    metadata = {
        "url": f"http://{resource.name}.{resource.namespace}.svc:{PORT}/metrics",
        "aggregateFromKubeServiceEndpoints": "true",
        "aggregationType": "sum",  # the HorizontalPodAutoscaler divides by the replicas
        "format": "prometheus",
        "valueLocation": gauge,
        "targetValue": target,
    }
    return {"type": "metrics-api", "metricType": "AverageValue", "metadata": metadata}

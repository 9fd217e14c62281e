"""Renders the objects of `spec.autoscaling`.

These are the HorizontalPodAutoscaler, KEDA's ScaledObject, and the EndpointSlices by which the Service of an idle
resource reaches the activator.

Both autoscalers scale the custom resource, and the operator copies the replicas to the Deployment.
"""

from collections.abc import Mapping

from unmask_operator import kinds
from unmask_operator.api import DiffusionLMService
from unmask_operator.api.autoscaling import DEFAULT_TARGETS, GAUGES, KEDA_POLLING_SECONDS, Autoscaling, Keda
from unmask_operator.objects import API_VERSION, FIELD_MANAGER, KIND, Obj
from unmask_operator.render.labels import PORT, PORT_NAME, activator_slice, child, engine_name

FAILED_POLLS = 3  # before the fallback
RUNNING = "runningRequestsPerReplica"
NEVER_REACHED = 1_000_000  # a target that only keeps the last replica while the trigger is active
SERVICE_OF_SLICE = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
OWN_SLICES = f"{MANAGED_BY}={FIELD_MANAGER}"  # selects the operator's among those of Kubernetes


def hpa(resource: DiffusionLMService) -> Obj | None:
    """Renders the HorizontalPodAutoscaler; None for another provider. Percentages are milli-units of the gauge."""
    scaling = resource.spec.autoscaling
    if scaling is None or scaling.provider != "HPA":
        return None
    metrics = []
    for name, target in (_targets(scaling) or DEFAULT_TARGETS).items():
        gauge, unit = GAUGES[name]
        value = str(target) if unit == 1 else f"{target * 1000 // unit}m"
        average = {"type": "AverageValue", "averageValue": value}
        metrics.append({"type": "Pods", "pods": {"metric": {"name": gauge}, "target": average}})
    spec = {
        "scaleTargetRef": _scale_target(resource),
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": metrics,
    }
    if scaling.behavior:
        spec["behavior"] = scaling.behavior.model_dump(by_alias=True, exclude_none=True)
    return child(resource, kinds.AUTOSCALERS, engine_name(resource.name), spec=spec)


def scaled_object(resource: DiffusionLMService, scale_down_seconds: int) -> Obj | None:
    """Renders the ScaledObject; None for another provider or while suspended.

    Its trigger `metrics-api` reads the pods' metrics without Prometheus. With `minReplicas` 0, running requests keep
    the last replica, also if nothing waits.

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
    targets = _targets(scaling) or ({} if keda.triggers else DEFAULT_TARGETS)
    if not scaling.min_replicas:
        targets = {RUNNING: NEVER_REACHED, **targets}
    triggers = [_trigger(resource, name, targets[name]) for name in GAUGES if name in targets]
    spec: Obj = {
        "scaleTargetRef": _scale_target(resource),
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        "pollingInterval": scaling.polling_interval_seconds or KEDA_POLLING_SECONDS,
        "cooldownPeriod": down["stabilizationWindowSeconds"],
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {**behavior, "scaleDown": down}}},
        "triggers": [*triggers, *keda.triggers],
    }
    if keda.fallback_replicas is not None:
        spec["fallback"] = {"failureThreshold": FAILED_POLLS, "replicas": keda.fallback_replicas}
    return child(resource, kinds.SCALED_OBJECTS, engine_name(resource.name), spec=spec)


def _scale_target(resource: DiffusionLMService) -> Obj:
    return {"apiVersion": API_VERSION, "kind": KIND, "name": resource.name}


def _targets(scaling: Autoscaling) -> dict[str, int]:
    return scaling.targets.model_dump(by_alias=True, exclude_none=True)


def _trigger(resource: DiffusionLMService, name: str, target: int) -> Obj:
    """Renders a trigger on the sum of a gauge over the Ready pods. Percentages are converted to the gauge's unit.

    KEDA takes the names of the Service and its namespace from the host, and the pods' port from the port. It splits
    host and port at dots, so the label before the port must not be the namespace.
    """
    gauge, unit = GAUGES[name]
    metadata = {
        "url": f"http://{resource.name}.{resource.namespace}.svc:{PORT}/metrics",
        "aggregateFromKubeServiceEndpoints": "true",
        "aggregationType": "sum",  # the HorizontalPodAutoscaler divides by the replicas
        "format": "prometheus",
        "valueLocation": gauge,
        "targetValue": f"{target / unit:g}" if unit > 1 else str(target),
    }
    return {"type": "metrics-api", "metricType": "AverageValue", "metadata": metadata}


def activator_slices(resource: DiffusionLMService, port: int, addresses: Mapping[str, str]) -> list[Obj]:
    """Renders one EndpointSlice per IP family of the activator's pods.

    Proxies join all EndpointSlices of a Service. Clients need no other address.

    Args:
        resource: the parsed resource.
        port: of the activator for this resource.
        addresses: nodes of the activator's pods by IP address.
    """
    made = []
    for family, suffix in (("IPv4", ""), ("IPv6", "-ipv6")):
        endpoints = [
            {
                "addresses": [address],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                **({"nodeName": node} if node else {}),
            }
            for address, node in sorted(addresses.items())
            if (":" in address) == (family == "IPv6")
        ]
        if not endpoints:
            continue
        # A Service finds its port by the name.
        ports = [{"name": PORT_NAME, "port": port, "protocol": "TCP", "appProtocol": "http"}]
        fields = {"addressType": family, "endpoints": endpoints, "ports": ports}
        name = f"{activator_slice(resource.name)}{suffix}"
        one = child(resource, kinds.ENDPOINT_SLICES, name, **fields)
        one["metadata"]["labels"] |= {SERVICE_OF_SLICE: resource.name, MANAGED_BY: FIELD_MANAGER}
        made.append(one)
    return made

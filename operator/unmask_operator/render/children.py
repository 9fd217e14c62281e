"""The children that stand beside the pods, each from a section of the spec that no pod is made of."""

from unmask_operator.api import DiffusionLMService
from unmask_operator.api.autoscaling import DEFAULT_TARGETS, GAUGES, Targets
from unmask_operator.objects import API_VERSION, KIND, SERVICE_LABEL, Obj
from unmask_operator.render.labels import PORT, PORT_NAME, annotate, child, engine_name, labels, selector
from unmask_operator.settings import Settings

PODMONITOR = "monitoring.coreos.com/v1/PodMonitor"  # as `Observed.apis` has it


def serviceaccount(resource: DiffusionLMService) -> Obj:
    """Of the pods: an identity for clouds and policies, without permissions or a token."""
    made = child(resource, "v1", "ServiceAccount", engine_name(resource.name), automountServiceAccountToken=False)
    annotate(made, resource.spec.service_account.annotations)
    return made


def service(owner: DiffusionLMService) -> Obj:
    """In front of the engine's pods."""
    requested = owner.spec.service
    port = {
        "name": PORT_NAME,
        "port": requested.port,
        "targetPort": PORT_NAME,  # by name: pods of an older form may listen elsewhere
        "protocol": "TCP",
        "appProtocol": "http",
    }
    spec: Obj = {"type": requested.type, "selector": selector(owner.name), "ports": [port]}
    if requested.load_balancer_class:
        spec["loadBalancerClass"] = requested.load_balancer_class
    if requested.load_balancer_source_ranges:
        spec["loadBalancerSourceRanges"] = list(requested.load_balancer_source_ranges)
    if requested.external_traffic_policy:
        spec["externalTrafficPolicy"] = requested.external_traffic_policy
    if requested.ip_family_policy:
        spec["ipFamilyPolicy"] = requested.ip_family_policy
    if requested.ip_families:
        spec["ipFamilies"] = list(requested.ip_families)
    if requested.session_affinity:
        spec["sessionAffinity"] = requested.session_affinity
    made = child(owner, "v1", "Service", owner.name, spec=spec)
    annotate(made, requested.annotations)
    return made


def networkpolicy(resource: DiffusionLMService, settings: Settings) -> Obj | None:
    """Who may reach the pods: clients, the operator (it reads load and progress) and collectors; nothing of where pods
    may reach. None unless the spec asks."""
    asked = resource.spec.network_policy
    if asked is None:
        return None
    any_pod: list[Obj] = [{"namespaceSelector": {}}]
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.namespace}},
        "podSelector": {"matchLabels": dict(settings.operator_selector)},
    }
    # Defaults are left out, so that an empty selector stays {}: it selects everything.
    clients = [peer.model_dump(by_alias=True, exclude_defaults=True) for peer in asked.from_] or any_pod
    collectors = [peer.model_dump(by_alias=True, exclude_defaults=True) for peer in asked.metrics_from]
    spec = {
        "podSelector": {"matchLabels": selector(resource.name)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [*clients, operator, *collectors], "ports": [{"protocol": "TCP", "port": PORT}]}],
    }
    return child(resource, "networking.k8s.io/v1", "NetworkPolicy", engine_name(resource.name), spec=spec)


def pdb(resource: DiffusionLMService) -> Obj | None:
    """How many pods a drain of nodes may take at once; None while suspended. By default a single replica may go."""
    asked = resource.spec.pod_disruption_budget
    if resource.spec.suspend:
        return None
    budget = asked.model_dump(by_alias=True, exclude_none=True) if asked else {}
    requested = {
        **(budget or {"maxUnavailable": 1}),
        "selector": {"matchLabels": selector(resource.name)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that serves nobody never holds a drain up
    }
    return child(resource, "policy/v1", "PodDisruptionBudget", engine_name(resource.name), spec=requested)


def podmonitor(resource: DiffusionLMService) -> Obj | None:
    """What tells Prometheus where to collect; None unless the spec asks. Whether the cluster has the kind is the plan's
    question."""
    asked = resource.spec.monitoring.pod_monitor
    if asked is None:
        return None
    endpoint = {"port": PORT_NAME, "path": "/metrics", "interval": asked.interval}
    spec = {
        "selector": {"matchLabels": selector(resource.name)},
        "jobLabel": SERVICE_LABEL,  # the metrics' `job` is the resource's name
        "podMetricsEndpoints": [endpoint],
    }
    api_version, _, kind = PODMONITOR.rpartition("/")
    made = child(resource, api_version, kind, engine_name(resource.name), spec=spec)
    made["metadata"]["labels"] = {**resource.spec.common_labels, **asked.labels, **labels(resource.name)}
    return made


def hpa(resource: DiffusionLMService) -> Obj | None:
    """It scales the resource itself, whose replicas the operator copies to the workload; None unless the spec asks for
    that provider."""
    scaling = resource.spec.autoscaling
    if scaling is None or scaling.provider != "HPA":
        return None
    spec = {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": resource.name},
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": _metrics(scaling.targets),
    }
    if scaling.behavior:
        spec["behavior"] = scaling.behavior.model_dump(by_alias=True, exclude_none=True)
    return child(resource, "autoscaling/v2", "HorizontalPodAutoscaler", engine_name(resource.name), spec=spec)


def _metrics(targets: Targets) -> list[Obj]:
    """One a target, by the runtime's gauge; a percentage is its share in thousandths."""
    requested: dict[str, int] = targets.model_dump(by_alias=True, exclude_none=True) or DEFAULT_TARGETS
    return [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": gauge},
                "target": {
                    "type": "AverageValue",
                    "averageValue": str(requested[name]) if unit == 1 else f"{requested[name] * 1000 // unit}m",
                },
            },
        }
        for name, (gauge, unit) in GAUGES.items()
        if name in requested
    ]

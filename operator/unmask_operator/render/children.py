"""The children that stand beside the pods, each from a section of the spec that no pod is made of."""

from unmask_operator.api import DiffusionLMService
from unmask_operator.api.autoscaling import DEFAULT_TARGETS, GAUGES, Targets
from unmask_operator.objects import API_VERSION, KIND, SERVICE_LABEL, Obj
from unmask_operator.render.labels import PORT, PORT_NAME, annotate, child, engine_name, labels, selector
from unmask_operator.settings import Settings

PODMONITOR = "monitoring.coreos.com/v1/PodMonitor"  # as `Observed.apis` has it


def serviceaccount(service: DiffusionLMService) -> Obj:
    """Of the pods: an identity for clouds and policies, without permissions or a token."""
    made = child(service, "v1", "ServiceAccount", engine_name(service.name), automountServiceAccountToken=False)
    annotate(made, service.spec.service_account.annotations)
    return made


def service(owner: DiffusionLMService) -> Obj:
    """In front of the engine's pods."""
    wanted = owner.spec.service
    port = {
        "name": PORT_NAME,
        "port": wanted.port,
        "targetPort": PORT_NAME,  # by name: pods of an older form may listen elsewhere
        "protocol": "TCP",
        "appProtocol": "http",
    }
    spec: Obj = {"type": wanted.type, "selector": selector(owner.name), "ports": [port]}
    if wanted.load_balancer_class:
        spec["loadBalancerClass"] = wanted.load_balancer_class
    if wanted.load_balancer_source_ranges:
        spec["loadBalancerSourceRanges"] = list(wanted.load_balancer_source_ranges)
    if wanted.external_traffic_policy:
        spec["externalTrafficPolicy"] = wanted.external_traffic_policy
    if wanted.ip_family_policy:
        spec["ipFamilyPolicy"] = wanted.ip_family_policy
    if wanted.ip_families:
        spec["ipFamilies"] = list(wanted.ip_families)
    if wanted.session_affinity:
        spec["sessionAffinity"] = wanted.session_affinity
    made = child(owner, "v1", "Service", owner.name, spec=spec)
    annotate(made, wanted.annotations)
    return made


def networkpolicy(service: DiffusionLMService, settings: Settings) -> Obj | None:
    """Who may reach the pods: clients, the operator (it reads load and progress) and collectors; nothing of where pods
    may reach. None unless the spec asks."""
    asked = service.spec.network_policy
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
        "podSelector": {"matchLabels": selector(service.name)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [*clients, operator, *collectors], "ports": [{"protocol": "TCP", "port": PORT}]}],
    }
    return child(service, "networking.k8s.io/v1", "NetworkPolicy", engine_name(service.name), spec=spec)


def pdb(service: DiffusionLMService) -> Obj | None:
    """How many pods a drain of nodes may take at once; None while suspended. By default a single replica may go."""
    asked = service.spec.pod_disruption_budget
    if service.spec.suspend:
        return None
    budget = asked.model_dump(by_alias=True, exclude_none=True) if asked else {}
    wanted = {
        **(budget or {"maxUnavailable": 1}),
        "selector": {"matchLabels": selector(service.name)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that serves nobody never holds a drain up
    }
    return child(service, "policy/v1", "PodDisruptionBudget", engine_name(service.name), spec=wanted)


def podmonitor(service: DiffusionLMService) -> Obj | None:
    """What tells Prometheus where to collect; None unless the spec asks. Whether the cluster has the kind is the plan's
    question."""
    asked = service.spec.monitoring.pod_monitor
    if asked is None:
        return None
    endpoint = {"port": PORT_NAME, "path": "/metrics", "interval": asked.interval}
    spec = {
        "selector": {"matchLabels": selector(service.name)},
        "jobLabel": SERVICE_LABEL,  # the metrics' `job` is the resource's name
        "podMetricsEndpoints": [endpoint],
    }
    api_version, _, kind = PODMONITOR.rpartition("/")
    made = child(service, api_version, kind, engine_name(service.name), spec=spec)
    made["metadata"]["labels"] = {**service.spec.common_labels, **asked.labels, **labels(service.name)}
    return made


def hpa(service: DiffusionLMService) -> Obj | None:
    """It scales the resource itself, whose replicas the operator copies to the workload; None unless the spec asks for
    that provider."""
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
    return child(service, "autoscaling/v2", "HorizontalPodAutoscaler", engine_name(service.name), spec=spec)


def _metrics(targets: Targets) -> list[Obj]:
    """One a target, by the runtime's gauge; a percentage is its share in thousandths."""
    wanted: dict[str, int] = targets.model_dump(by_alias=True, exclude_none=True) or DEFAULT_TARGETS
    return [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": gauge},
                "target": {
                    "type": "AverageValue",
                    "averageValue": str(wanted[name]) if unit == 1 else f"{wanted[name] * 1000 // unit}m",
                },
            },
        }
        for name, (gauge, unit) in GAUGES.items()
        if name in wanted
    ]

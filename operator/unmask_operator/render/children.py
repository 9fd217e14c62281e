"""Renders the children that are configured by sections outside the pod template."""

from unmask_operator import kinds
from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import SERVICE_LABEL, Obj
from unmask_operator.render.labels import (
    PORT,
    PORT_NAME,
    annotate,
    child,
    engine_name,
    labels,
    selector,
    serving_selector,
)
from unmask_operator.settings import Settings


def serviceaccount(resource: DiffusionLMService) -> Obj:
    """Renders the ServiceAccount of the pods, without permissions or a mounted token."""
    made = child(resource, kinds.SERVICE_ACCOUNTS, engine_name(resource.name), automountServiceAccountToken=False)
    annotate(made, resource.spec.service_account.annotations)
    return made


def service(owner: DiffusionLMService) -> Obj:
    """Renders the Service of the engine's pods."""
    requested = owner.spec.service
    port = {
        "name": PORT_NAME,
        "port": requested.port,
        "targetPort": PORT_NAME,  # by name, since pods of an older revision may use another port
        "protocol": "TCP",
        "appProtocol": "http",
    }
    optional = requested.model_dump(by_alias=True, exclude_none=True, exclude={"type", "port", "annotations"})
    spec = {"type": requested.type, "selector": serving_selector(owner), "ports": [port], **optional}
    made = child(owner, kinds.SERVICES, owner.name, spec=spec)
    annotate(made, requested.annotations)
    return made


def networkpolicy(resource: DiffusionLMService, settings: Settings) -> Obj | None:
    """Renders the NetworkPolicy; None if the spec has none.

    It restricts ingress only. It admits clients, metrics collectors, the activator, and the operator, which reads load
    and progress.
    """
    policy = resource.spec.network_policy
    if policy is None:
        return None
    any_pod: list[Obj] = [{"namespaceSelector": {}}]
    scaling = resource.spec.autoscaling
    selectors = [settings.operator_selector]
    if scaling and scaling.zero and settings.activator_selector:
        selectors.append(settings.activator_selector)
    operators = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.namespace}},
            "podSelector": {"matchLabels": dict(pods)},
        }
        for pods in selectors
    ]
    # Without defaults, an empty selector stays {}, which selects everything.
    clients = [peer.model_dump(by_alias=True, exclude_defaults=True) for peer in policy.from_] or any_pod
    collectors = [peer.model_dump(by_alias=True, exclude_defaults=True) for peer in policy.metrics_from]
    ingress = [{"from": [*clients, *operators, *collectors], "ports": [{"protocol": "TCP", "port": PORT}]}]
    pods = {"matchLabels": selector(resource.name)}
    if resource.spec.parallelism.nodes > 1:  # ranks also listen on ports that the kernel selects
        ingress.append({"from": [{"podSelector": pods}]})
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}
    return child(resource, kinds.NETWORK_POLICIES, engine_name(resource.name), spec=spec)


def pdb(resource: DiffusionLMService) -> Obj | None:
    """Renders the PodDisruptionBudget; None while suspended. The default allows the eviction of a single replica."""
    section = resource.spec.pod_disruption_budget
    if resource.spec.suspend:
        return None
    budget = section.model_dump(by_alias=True, exclude_none=True) if section else {}
    spec = {
        **(budget or {"maxUnavailable": 1}),
        "selector": {"matchLabels": selector(resource.name)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",  # an unready pod must not block a drain
    }
    return child(resource, kinds.DISRUPTION_BUDGETS, engine_name(resource.name), spec=spec)


def podmonitor(resource: DiffusionLMService) -> Obj | None:
    """Renders the PodMonitor; None if the spec has none. `plan` checks whether the cluster has the kind."""
    monitor = resource.spec.monitoring.pod_monitor
    if monitor is None:
        return None
    endpoint = {"port": PORT_NAME, "path": "/metrics", "interval": monitor.interval}
    spec = {
        "selector": {"matchLabels": serving_selector(resource)},
        "jobLabel": SERVICE_LABEL,  # label `job` of the metrics is the resource's name
        "podMetricsEndpoints": [endpoint],
    }
    made = child(resource, kinds.POD_MONITORS, engine_name(resource.name), spec=spec)
    made["metadata"]["labels"] = {**resource.spec.common_labels, **monitor.labels, **labels(resource.name)}
    return made

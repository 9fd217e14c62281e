"""The NetworkPolicy: who may reach the engine's port."""

from __future__ import annotations

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj
from unmask_operator.render.names import PORT, child, engine, selector
from unmask_operator.settings import Settings


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
    return child(service, "networking.k8s.io/v1", "NetworkPolicy", engine(service.name), spec=spec)

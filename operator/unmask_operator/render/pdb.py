"""The PodDisruptionBudget: how many pods a drain of nodes may take at once."""

from __future__ import annotations

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj
from unmask_operator.render.names import child, engine, selector


def pdb(service: DiffusionLMService) -> Obj | None:
    """The disruption budget; None while suspended. What it is by default lets a single replica go."""
    asked = service.spec.pod_disruption_budget
    if service.spec.suspend:
        return None
    budget = asked.model_dump(by_alias=True, exclude_none=True) if asked else {}
    wanted = {
        **(budget or {"maxUnavailable": 1}),
        "selector": {"matchLabels": selector(service.name)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that serves nobody never holds a drain up
    }
    return child(service, "policy/v1", "PodDisruptionBudget", engine(service.name), spec=wanted)

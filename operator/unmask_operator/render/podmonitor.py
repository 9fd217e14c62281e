"""The PodMonitor, by which the Prometheus operator scrapes the engine's pods."""

from __future__ import annotations

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import SERVICE_LABEL, Obj
from unmask_operator.render.names import PORT_NAME, child, engine, selector

PODMONITOR = "monitoring.coreos.com/v1/PodMonitor"  # as `Observed.apis` has it


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
    made = child(service, api_version, kind, engine(service.name), spec=spec)
    made["metadata"]["labels"] = {**asked.labels, **made["metadata"]["labels"]}
    return made

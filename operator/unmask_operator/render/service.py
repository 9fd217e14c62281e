"""The Service in front of the engine's pods."""

from __future__ import annotations

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj
from unmask_operator.render.names import PORT_NAME, child, selector


def service(owner: DiffusionLMService) -> Obj:
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
    made = child(owner, "v1", "Service", owner.name, spec=spec)
    if wanted.annotations:
        made["metadata"]["annotations"] = dict(wanted.annotations)
    return made

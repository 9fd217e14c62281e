"""Renders the EndpointSlices by which the Service of an idle resource reaches the activator.

Proxies join all EndpointSlices of a Service. Clients need no other address.
"""

from collections.abc import Mapping

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import FIELD_MANAGER, Obj
from unmask_operator.render.labels import PORT_NAME, activator_slice, child

SERVICE_OF_SLICE = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
OWN_SLICES = f"{MANAGED_BY}={FIELD_MANAGER}"  # selects the operator's among those of Kubernetes


def slices(resource: DiffusionLMService, port: int, addresses: Mapping[str, str]) -> list[Obj]:
    """Renders one EndpointSlice per IP family of the activator's pods.

    Args:
        resource: the parsed resource.
        port: of the activator for this resource.
        addresses: nodes of the activator's pods by IP address.
    """
    name = activator_slice(resource.name)
    families = {
        ("IPv4", name): [address for address in sorted(addresses) if ":" not in address],
        ("IPv6", f"{name}-ipv6"): [address for address in sorted(addresses) if ":" in address],
    }
    return [
        _slice(resource, name, family, port, {address: addresses[address] for address in found})
        for (family, name), found in families.items()
        if found
    ]


def _slice(resource: DiffusionLMService, name: str, family: str, port: int, addresses: Mapping[str, str]) -> Obj:
    ready = {"ready": True, "serving": True, "terminating": False}
    endpoints = [
        {"addresses": [address], "conditions": ready, **({"nodeName": node} if node else {})}
        for address, node in addresses.items()
    ]
    made = child(
        resource,
        "discovery.k8s.io/v1",
        "EndpointSlice",
        name,
        addressType=family,
        endpoints=endpoints,
        # A Service finds its port by the name.
        ports=[{"name": PORT_NAME, "port": port, "protocol": "TCP", "appProtocol": "http"}],
    )
    made["metadata"]["labels"] |= {SERVICE_OF_SLICE: resource.name, MANAGED_BY: FIELD_MANAGER}
    return made

"""Starts CoreDNS on the node's address and creates the Service through which pods reach it."""

from __future__ import annotations

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import Kube
from e2e.cluster.node.kubelet import DNS
from e2e.cluster.node.network import Network

_COREFILE = """\
.:53 {{
  bind {address}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    ttl 1
  }}
}}
"""
_PORTS = [("dns", "UDP"), ("dns-tcp", "TCP")]


def start_dns(plane: ControlPlane, network: Network, kube: Kube) -> None:
    """Starts CoreDNS. Pods can then resolve names like `web` and `web.default.svc.cluster.local`, but no others."""
    file = plane.site.directory / "Corefile"
    file.write_text(_COREFILE.format(address=network.node, kubeconfig=plane.user("coredns")))
    for obj in _objects(network.node):
        kube.apply(obj)
    plane.spawn("coredns", "-conf", str(file))


def _objects(address: str) -> list[dict[str, object]]:
    meta = {"name": "kube-dns", "namespace": "kube-system"}
    ports = [{"name": name, "port": 53, "protocol": protocol} for name, protocol in _PORTS]
    group = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "unmask-e2e-coredns"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "coredns"}],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**meta, "labels": {"kubernetes.io/name": "CoreDNS"}},
            "spec": {"clusterIP": DNS, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**meta, "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": ports,
        },
    ]

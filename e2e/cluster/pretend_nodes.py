"""Nodes that kwok simulates, for hundreds of pods without a kubelet. The pods become ready but run nothing."""

from __future__ import annotations

import json
from typing import Any

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import Kube, Obj

PODS = 110  # maximum number of pods per node, the default of kubelets
LOAD_MILLISECONDS = 2000  # from the start of the containers until the pod is ready
# Multicast addresses. The kernel refuses to connect to them, so requests to pods never leave the machine. The API
# server accepts them as endpoints, unlike loopback addresses.
POD_ADDRESSES = "239.10.0.0/16"
LEASE_SECONDS = 40


def start(plane: ControlPlane, nodes: int) -> None:
    """Creates the nodes and starts kwok, which renews their Leases and simulates their pods."""
    config = plane.site.directory / "kwok.json"
    config.write_text("\n---\n".join(json.dumps(stage) for stage in _stages()))  # JSON is YAML
    kube = Kube(plane.admin)
    for number in range(nodes):
        kube.create(_node(f"pretend-{number}"))
    kube.close()
    plane.spawn(
        "kwok",
        f"--kubeconfig={plane.user('kwok', ['system:masters'])}",
        f"--config={config}",
        "--manage-nodes-with-label-selector=kubernetes.io/os=linux",
        f"--cidr={POD_ADDRESSES}",
        f"--node-lease-duration-seconds={LEASE_SECONDS}",
    )


def _node(name: str) -> Obj:
    capacity = {"cpu": "64", "memory": "512Gi", "pods": str(PODS)}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}}
    status = {"capacity": capacity, "allocatable": capacity}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}


def _stages() -> list[Obj]:
    """Returns kwok's stages: nodes become ready; pods start, become ready after a delay, and end when deleted."""
    alive = _where(".metadata.deletionTimestamp", "DoesNotExist")
    waiting = _where(".status.phase", "In", "Pending")
    running = _where(".status.phase", "In", "Running")
    unready = _where('.status.conditions.[] | select(.type == "Ready") | .status', "NotIn", "True")
    return [
        _stage("node-ready", "Node", [unready], {"statusTemplate": _NODE_READY}),
        _stage("pod-started", "Pod", [alive, waiting], {"statusTemplate": _pod("False", address=True)}),
        _stage("pod-ready", "Pod", [alive, running, unready], {"statusTemplate": _pod("True")}, LOAD_MILLISECONDS),
        _stage("pod-gone", "Pod", [_where(".metadata.deletionTimestamp", "Exists")], {"delete": True}),
    ]


def _where(key: str, operator: str, *values: str) -> Obj:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _stage(name: str, kind: str, where: list[Obj], then: Obj, milliseconds: int = 0) -> Obj:
    spec: dict[str, Any] = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "selector": {"matchExpressions": where}}
    spec |= {"next": then, **({"delay": {"durationMilliseconds": milliseconds}} if milliseconds else {})}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


_NODE_READY = """
conditions:
- {type: Ready, status: "True", reason: KubeletReady, message: kwok plays it, lastHeartbeatTime: {{ Now | Quote }},
   lastTransitionTime: {{ Now | Quote }}}
"""


def _pod(ready: str, *, address: bool = False) -> str:
    """Returns the status template of a pod whose containers run. `ready` ("True", "False") is also used for started."""
    conditions = "".join(
        f'- {{type: {kind}, status: "{status}", lastTransitionTime: {{{{ Now | Quote }}}}}}\n'
        for kind, status in (("Initialized", "True"), ("ContainersReady", ready), ("Ready", ready))
    )
    yes = ready.lower()
    containers = (
        "{{ range .spec.containers }}\n"
        "- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: '', restartCount: 0,\n"
        f"   ready: {yes}, started: {yes}, state: {{running: {{startedAt: {{{{ Now | Quote }}}}}}}}}}\n"
        "{{ end }}\n"
    )
    return f"conditions:\n{conditions}containerStatuses:\n{containers}phase: Running\n{_ADDRESS if address else ''}"


_ADDRESS = """
startTime: {{ Now | Quote }}
{{ with PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ . | Quote }}
podIPs:
- ip: {{ . | Quote }}
{{ end }}
"""

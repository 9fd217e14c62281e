"""Hundreds of pods without a kubelet: nodes that kwok plays, whose pods start and become ready but run nothing."""

from __future__ import annotations

import json
from typing import Any

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import Kube, Obj

PODS = 110  # what a node takes, as kubelets have it
LOAD_MILLISECONDS = 2000  # from the process's start to a pod that is ready
# Multicast addresses: the kernel refuses to connect to them, so nothing that is sent to a pod leaves the machine,
# while the API server takes them for endpoints, other than loopback addresses.
POD_ADDRESSES = "239.10.0.0/16"
LEASE_SECONDS = 40


def start(plane: ControlPlane, nodes: int) -> None:
    """Make the nodes and start kwok, which keeps their Leases and plays their pods."""
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
        "--manage-all-nodes=true",
        f"--cidr={POD_ADDRESSES}",
        f"--node-lease-duration-seconds={LEASE_SECONDS}",
    )


def _node(name: str) -> Obj:
    capacity = {"cpu": "64", "memory": "512Gi", "pods": str(PODS)}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}}
    status = {"capacity": capacity, "allocatable": capacity}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}


def _stages() -> list[Obj]:
    """A node gets ready; a pod starts, is ready a while later, and goes away when it is deleted."""
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
    """A pod whose containers run, and are started and ready or not."""
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

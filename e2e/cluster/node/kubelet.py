"""Starts the kubelet and kube-proxy of the cluster's only node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.node.network import PODS, Network

DNS = "10.96.0.10"


def make_cgroup(name: str) -> None:
    """Creates the parent cgroup of all pods, in every hierarchy (cgroup v1) or in the only one (v2)."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        (root / name).mkdir(exist_ok=True)
        return
    for hierarchy in root.iterdir():
        if (hierarchy / "tasks").exists() or (hierarchy / "cgroup.procs").exists():
            (hierarchy / name).mkdir(exist_ok=True)
    cpuset = root / "cpuset"
    for file in ("cpuset.cpus", "cpuset.mems"):  # a new cpuset is empty and takes no process
        if (cpuset / file).exists():
            (cpuset / name / file).write_text((cpuset / file).read_text())


def start_kubelet(plane: ControlPlane, network: Network, socket: Path, cgroup: str) -> str:
    """Starts the kubelet and returns the node's name."""
    directory, node = plane.site.directory, network.name
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plane.ca_file)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "enforceNodeAllocatable": [],
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "podLogsDir": str(directory / "pods"),
        "resolvConf": "",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "volumePluginDir": str(directory / "volume-plugins"),
        "maxPods": 200,
    }
    file = directory / "kubelet.yaml"
    file.write_text(yaml.safe_dump(config))
    plane.spawn(
        "kubelet",
        f"--config={file}",
        f"--kubeconfig={plane.user(f'system:node:{node}', ['system:nodes'])}",
        f"--root-dir={directory / 'kubelet'}",
        f"--cert-dir={directory / 'kubelet' / 'pki'}",
        f"--hostname-override={node}",
        f"--node-ip={network.node}",
    )
    return node


def start_proxy(plane: ControlPlane, network: Network, node: str) -> None:
    plane.spawn(
        "kube-proxy",
        f"--kubeconfig={plane.user('system:kube-proxy')}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={PODS}",
        f"--hostname-override={node}",
        f"--bind-address={network.node}",
        "--conntrack-max-per-core=0",
    )

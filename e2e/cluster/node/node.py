"""Starts and removes a complete cluster with one node."""

from __future__ import annotations

import contextlib
from pathlib import Path

from e2e.cluster.control_plane import ControlPlane, Site
from e2e.cluster.kube import Kube
from e2e.cluster.node import kubelet
from e2e.cluster.node.containers import Containers, remove_cgroups, remove_tree
from e2e.cluster.node.dns import start_dns
from e2e.cluster.node.network import Network
from e2e.cluster.process import stop, wait_for
from e2e.cluster.records import Record

_ETCD, _CONTROLLERS = (2379, 2380), (10257, 10259)


def store_of(record: Record, cache: Path) -> Path:
    """Returns containerd's image store. It is kept for the next cluster of this number.

    An import of the runtime's image takes minutes, because it has torch.
    """
    return cache / "images" / str(record.number)


class Node:
    """The cluster of a record. It has its own network namespace, cgroup and folder."""

    def __init__(self, record: Record, cache: Path) -> None:
        self.record = record
        self.store = store_of(record, cache)
        self.network = Network(record.number)
        self.containers = Containers(record.directory, self.store)

    def start_containers(self) -> None:
        """Creates the network namespace and starts containerd in it, so that images can be loaded."""
        self.network.claim()
        self.record.network = True
        self.record.save()
        self.network.connect()
        logs = self.record.directory / "logs"
        logs.mkdir(exist_ok=True)
        self.record.daemons.append(self.containers.start(self.network, logs))
        self.record.save()

    def start(self, programs: dict[str, Path]) -> Path:
        """Starts the control plane, the kubelet, kube-proxy and CoreDNS, and waits until the node is Ready.

        Returns:
            The admin's kubeconfig.
        """
        site = Site(self.record.directory, self.network.node, 6443, _ETCD, _CONTROLLERS, self.network.enter)
        plane = ControlPlane(site, programs, started=self._remember)
        plane.start_etcd()
        plane.start_api_server()
        plane.start_controller_manager()
        plane.start_scheduler()
        kubelet.make_cgroup(self.network.name)
        node = kubelet.start_kubelet(plane, self.network, self.containers.socket, self.network.name)
        kubelet.start_proxy(plane, self.network, node)
        kube = Kube(plane.admin)
        start_dns(plane, self.network, kube)
        wait_for("the node", lambda: _ready(kube, node), plane.daemons)
        kube.close()
        return plane.admin

    def _remember(self, plane: ControlPlane) -> None:
        """Saves the started daemons at once, so that they can be stopped after an interrupted start."""
        known = {daemon.pid for daemon in self.record.daemons}
        self.record.daemons += [daemon for daemon in plane.daemons if daemon.pid not in known]
        self.record.save()

    def destroy(self) -> None:
        """Stops and removes the cluster, even if it was only partly started. The image store stays."""
        by_name = {daemon.name: daemon for daemon in self.record.daemons}
        first = [daemon for daemon in self.record.daemons if daemon.name != "containerd"]
        stop(first[::-1], grace=2)
        if (containerd := by_name.get("containerd")) and containerd.alive():
            self.containers.remove_containers()
            stop([containerd])
        if self.record.network:
            with contextlib.suppress(OSError):
                remove_cgroups(self.network.name)
            self.network.delete()
        remove_tree(self.record.directory)


def _ready(kube: Kube, node: str) -> bool:
    found = kube.find("v1", "Node", node)
    conditions = found["status"].get("conditions", []) if found else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

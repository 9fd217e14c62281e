"""A whole cluster of one node, from nothing to Ready, and back to nothing."""

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
    """containerd's images: kept for the next cluster of this number, since importing torch takes minutes."""
    return cache / "images" / str(record.number)


class Node:
    """Cluster `record`: everything in its own network namespace and below its own cgroup and folder."""

    def __init__(self, record: Record, cache: Path) -> None:
        self.record = record
        self.store = store_of(record, cache)
        self.network = Network(record.number)
        self.containers = Containers(record.directory, self.store)

    def start_containers(self) -> None:
        """The namespace, and containerd in it: enough to load images."""
        self.network.claim()
        self.record.network = True
        self.record.save()
        self.network.connect()
        logs = self.record.directory / "logs"
        logs.mkdir(exist_ok=True)
        self.record.daemons.append(self.containers.start(self.network, logs))
        self.record.save()

    def start(self, programs: dict[str, Path]) -> Path:
        """The control plane, kubelet, kube-proxy and DNS. Returns the admin's kubeconfig once the node is Ready."""
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
        """On disk at once, so that whatever interrupts the start can be cleaned up after."""
        known = {daemon.pid for daemon in self.record.daemons}
        self.record.daemons += [daemon for daemon in plane.daemons if daemon.pid not in known]
        self.record.save()

    def destroy(self) -> None:
        """Stop and remove all there is of it, also when it was only half made. The image store stays."""
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

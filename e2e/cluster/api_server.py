"""The API server level of test clusters: an API server on loopback, with or without controllers, for one test run."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import kubeconfig, pretend_nodes
from e2e.cluster.audit import read_events
from e2e.cluster.binaries import API_SERVER, CONTROLLERS, PRETEND_NODES, find
from e2e.cluster.config import environment
from e2e.cluster.control_plane import LOOPBACK_FLAGS, ControlPlane, Site
from e2e.cluster.kube import Kube, Obj
from e2e.cluster.process import StartError, free_ports


@dataclass
class ApiServer:
    """A reachable API server.

    Attributes:
        url: its address.
        kubeconfig: kubeconfig of its admin, who authenticates with a token, because a token also works through a proxy.
        directory: folder for kubeconfigs and other files; it is removed at the end.
        audit_log: file with one JSON event per line; None for an external cluster.
        controllers: whether a controller-manager runs (garbage collection, Deployments' ReplicaSets, quota, HPA).
    """

    url: str
    kubeconfig: Path
    directory: Path
    audit_log: Path | None = None
    controllers: bool = False
    _plane: ControlPlane | None = field(default=None, repr=False)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by name; empty for an external cluster."""
        return {daemon.name: daemon.pid for daemon in self._plane.daemons} if self._plane else {}

    def admin(self, *, user: str = "", groups: tuple[str, ...] = ()) -> Kube:
        """Returns a client of the admin, which impersonates `user` and `groups` if given."""
        return Kube(self.kubeconfig, user=user, groups=groups)

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Writes a kubeconfig for a service account, with a token that is valid for one hour."""
        kube = self.admin()
        path = kube.path("v1", "ServiceAccount", namespace, name, "token")
        token = kube.request(
            "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        )
        kube.close()
        file, ca = self.directory / f"{namespace}-{name}.kubeconfig", kubeconfig.read(self.kubeconfig).authority
        return kubeconfig.write(file, self.url, ca, user=name, token=token["status"]["token"])

    def requests(self, user: str = "") -> list[Obj]:
        """Returns the audit log's events of one user (`system:serviceaccount:NAMESPACE:NAME`), or of all users."""
        if not self.audit_log:
            raise StartError("this cluster is not ours: it has no audit log that tests can read")
        return read_events(self.audit_log, user)


@contextlib.contextmanager
def start_api_server(*, controllers: bool = False, nodes: int = 0, feature_gates: str = "") -> Iterator[ApiServer]:
    """Starts etcd and kube-apiserver, which are ready within seconds. They end with the block.

    Args:
        controllers: Whether to start kube-controller-manager.
        nodes: Number of simulated nodes. Their pods become ready but run nothing. If not 0, the scheduler and
            kube-controller-manager start too.
        feature_gates: Of kube-apiserver, such as "ImageVolume=true".

    Raises:
        MissingProgramError: Programs are not built yet.
        StartError: A program does not start. The message has the end of its log.
    """
    env = environment()
    controllers = controllers or nodes > 0
    programs = find([*API_SERVER, *(CONTROLLERS if controllers else ()), *(PRETEND_NODES if nodes else ())], env)
    directory = Path(tempfile.mkdtemp(prefix="unmask-api-"))
    port, client, peer, manager, scheduler = free_ports(5)
    site = Site(directory, "127.0.0.1", port, (client, peer), (manager, scheduler), tied=True)
    plane = ControlPlane(site, programs)
    try:
        plane.start_etcd()
        plane.start_api_server(*LOOPBACK_FLAGS, *([f"--feature-gates={feature_gates}"] if feature_gates else []))
        if controllers:
            plane.start_controller_manager()
        if nodes:
            plane.start_scheduler()
            pretend_nodes.start(plane, nodes)
        yield ApiServer(site.url, plane.admin, directory, plane.audit_log, controllers, plane)
    finally:
        plane.stop(grace=0)
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def external_api_server(path: Path) -> Iterator[ApiServer]:
    """Yields an external cluster and prints its address on stderr. Starts nothing."""
    access = kubeconfig.read(path)
    print(f"tests use the cluster of {path}: context {access.context}, {access.server}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="unmask-api-") as directory:
        yield ApiServer(access.server, path, Path(directory), controllers=True)

"""Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler of a cluster with their credentials."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from e2e.cluster import kubeconfig
from e2e.cluster.kube import ApiError, Kube
from e2e.cluster.pki import Authority, new_key, private_pem
from e2e.cluster.process import Daemon, spawn, stop, wait_for

SERVICES = "10.96.0.0/16"
# For an API server on loopback. A loopback address is no valid endpoint, so the reconciler of endpoints is off. With
# ranges of both address families, Services may request either.
LOOPBACK_FLAGS = ("--endpoint-reconciler-type=none", f"--service-cluster-ip-range={SERVICES},fd00:10:96::/112")
_API_SERVICE = "10.96.0.1"  # address of the Service `kubernetes`, the first of SERVICES
_ISSUER = "https://kubernetes.default.svc"
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True)
class Site:
    """Folder, addresses and ports of a cluster's daemons.

    Attributes:
        directory: folder for their files.
        address, port: address and port of the API server, as seen by its clients.
        etcd_ports: etcd's ports for clients and for peers, on 127.0.0.1.
        controller_ports: health ports of the controller-manager and the scheduler, on 127.0.0.1.
        enter: prefix of a command that runs in the cluster's network namespace.
        tied: whether the daemons die with this process.
    """

    directory: Path
    address: str
    port: int
    etcd_ports: tuple[int, int]
    controller_ports: tuple[int, int]
    enter: tuple[str, ...] = ()
    tied: bool = False

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"


class ControlPlane:
    """The control plane of one cluster. Each daemon has its own start method.

    Args:
        started: Called after the start of each daemon.

    Attributes:
        daemons: running daemons, in the order of their start.
        authority: certificate authority, which can issue certificates later too.
        admin: the admin's kubeconfig.
    """

    def __init__(
        self,
        site: Site,
        programs: Mapping[str, Path],
        started: Callable[[ControlPlane], None] = lambda plane: None,
    ) -> None:
        self.site, self._programs, self._started = site, programs, started
        self.daemons: list[Daemon] = []
        self.authority = Authority("unmask-e2e")
        self._keys = site.directory / "pki"
        for folder in (self._keys, site.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.admin = self._write_credentials()
        self.audit_log = site.directory / "audit.log"

    @property
    def ca_file(self) -> Path:
        return self._keys / "ca.crt"

    def _write_credentials(self) -> Path:
        """Writes the certificates, keys, tokens and policies that the daemons read. Returns the admin's kubeconfig."""
        keys, front = self._keys, Authority("unmask-e2e-front-proxy")
        self.ca_file.write_bytes(self.authority.certificate)
        (keys / "front-proxy-ca.crt").write_bytes(front.certificate)
        front.issue("front-proxy-client").write(keys, "front-proxy-client")
        hosts = [self.site.address, _API_SERVICE, "127.0.0.1", "localhost", "kubernetes.default.svc"]
        self.authority.issue("kube-apiserver", hosts=hosts).write(keys, "apiserver")
        self.authority.issue("kube-apiserver-kubelet-client", ["system:masters"]).write(keys, "kubelet-client")
        for name in ("service-accounts.key", "tokens.csv"):
            (keys / name).touch(mode=0o600)
        (keys / "service-accounts.key").write_bytes(private_pem(new_key()))
        (keys / "audit.json").write_text(json.dumps(_AUDIT))
        token = secrets.token_urlsafe(24)
        (keys / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        path = self.site.directory / "kubeconfig"
        return kubeconfig.write(path, self.site.url, self.authority.certificate, user="admin", token=token)

    def user(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Writes a kubeconfig for a user, with a client certificate."""
        path = self._keys / f"{user.replace(':', '-')}.kubeconfig"
        pair = self.authority.issue(user, groups)
        return kubeconfig.write(path, self.site.url, self.authority.certificate, user=user, pair=pair)

    def spawn(self, name: str, *flags: str) -> Daemon:
        command: list[str | Path] = [*self.site.enter, self._programs[name], *flags]
        daemon = spawn(name, command, self.site.logs, tied=self.site.tied)
        self.daemons.append(daemon)
        self._started(self)
        return daemon

    def start_etcd(self) -> None:
        clients, peers = (f"http://127.0.0.1:{port}" for port in self.site.etcd_ports)
        self.spawn(
            "etcd",
            f"--data-dir={self.site.directory / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",  # a test's cluster does not outlive the machine
            "--log-level=warn",
        )

    def start_api_server(self, *extra: str) -> None:
        """Starts kube-apiserver and waits until it is ready, including the default roles of RBAC."""
        keys, site = self._keys, self.site
        server = self.spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{site.etcd_ports[0]}",
            f"--bind-address={site.address}",
            f"--advertise-address={site.address}",
            f"--secure-port={site.port}",
            f"--tls-cert-file={keys / 'apiserver.crt'}",
            f"--tls-private-key-file={keys / 'apiserver.key'}",
            f"--client-ca-file={self.ca_file}",
            f"--token-auth-file={keys / 'tokens.csv'}",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={keys / 'service-accounts.key'}",
            f"--service-account-signing-key-file={keys / 'service-accounts.key'}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            f"--audit-policy-file={keys / 'audit.json'}",
            f"--audit-log-path={self.audit_log}",
            f"--requestheader-client-ca-file={keys / 'front-proxy-ca.crt'}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={keys / 'front-proxy-client.crt'}",
            f"--proxy-client-key-file={keys / 'front-proxy-client.key'}",
            f"--kubelet-client-certificate={keys / 'kubelet-client.crt'}",
            f"--kubelet-client-key={keys / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--profiling=false",
            *extra,
        )
        with contextlib.closing(Kube(self.admin)) as kube:

            def ready() -> bool:
                try:
                    kube.request("GET", "/readyz")
                except (ApiError, ApiException, HTTPError):
                    return False
                return True

            wait_for("the API server", ready, [*self.daemons[:1], server])

    def start_controller_manager(self) -> None:
        """Starts kube-controller-manager with a request rate that is sufficient for hundreds of services."""
        keys = self._keys
        self.spawn(
            "kube-controller-manager",
            f"--kubeconfig={self.user('system:kube-controller-manager')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.site.controller_ports[0]}",
            f"--root-ca-file={self.ca_file}",
            f"--service-account-private-key-file={keys / 'service-accounts.key'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--kube-api-qps=300",
            "--kube-api-burst=600",
            "--horizontal-pod-autoscaler-sync-period=5s",  # shorter than the default of 15 s, which slows tests down
        )

    def start_scheduler(self) -> None:
        self.spawn(
            "kube-scheduler",
            f"--kubeconfig={self.user('system:kube-scheduler')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.site.controller_ports[1]}",
            "--leader-elect=false",
            "--kube-api-qps=300",
            "--kube-api-burst=600",
        )

    def stop(self, *, grace: float = 5.0) -> None:
        stop(self.daemons[::-1], grace=grace)
        self.daemons.clear()

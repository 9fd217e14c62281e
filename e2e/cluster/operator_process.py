"""Runs the operator as a process against a test's API server, with the permissions of `tools/permissions.py` only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import httpx
import yaml

from e2e.cluster.api_server import ApiServer
from e2e.cluster.authorization import wait_allowed
from e2e.cluster.kube import ApiError, Kube
from e2e.cluster.process import free_ports
from tests.wait import TIMEOUT, wait_until
from tests.written import written
from tools.permissions import ACTIVATOR_RULES, NODE_RULE, RULES, VALUE_RULES, Rule
from unmask_operator.objects import API_VERSION, KIND

ROOT = Path(__file__).parents[2]
ACCOUNT = "unmask-operator"
ACTIVATOR = "unmask-activator"  # its Service and service account
RBAC = "rbac.authorization.k8s.io"
CRDS = ROOT / "crds"
EVERY_RULE = (*RULES, *(rule for rules in VALUE_RULES.values() for rule in rules))


def install(api: ApiServer, kube: Kube, own: str, watched: Collection[str]) -> None:
    """Installs what the chart installs: the CRD, the service account with its roles, and a Deployment without pods.

    The Lease exists already and has no holder, so that an operator acquires it immediately.
    """
    for file in sorted(CRDS.glob("*.yaml")):
        kube.define(yaml.safe_load(file.read_text()))
    kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": own}})
    grant(kube, own, watched)
    labels = {"app": ACCOUNT}
    containers = [{"name": "operator", "image": "unmask-operator:0"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": ACCOUNT, "namespace": own}
    kube.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    reset_lease(kube, own)
    wait_granted(kube, own, watched)
    wait_owners(api, own, next(iter(watched), own))


def grant(kube: Kube, own: str, watched: Iterable[str], rules: Iterable[Rule] = EVERY_RULE) -> None:
    """Grants the operator's service account these rules. An empty `watched` means the whole cluster."""
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": own}
    by_scope = {scope: [r for r in rules if r.scope == scope] for scope in ("watched", "own")}
    _bind(kube, "ClusterRole", f"{own}-nodes", "", [NODE_RULE], subject)
    watched = list(watched)
    if not watched:
        _bind(kube, "ClusterRole", f"{own}-watched", "", by_scope["watched"], subject)
    for namespace in watched:
        _bind(kube, "Role", f"{own}-watched", namespace, by_scope["watched"], subject)
    _bind(kube, "Role", f"{own}-own", own, by_scope["own"], subject)


def _bind(kube: Kube, kind: str, name: str, namespace: str, rules: Iterable[Rule], subject: dict[str, str]) -> None:
    meta = {"name": name, "namespace": namespace} if namespace else {"name": name}
    granted = [{"apiGroups": [r.group], "resources": [r.resource], "verbs": sorted(r.verbs)} for r in rules]
    kube.apply({"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta, "rules": granted})
    reference = {"apiGroup": RBAC, "kind": kind, "name": name}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": f"{kind}Binding", "metadata": meta, "roleRef": reference}
    kube.apply({**binding, "subjects": [subject]})


def reset_lease(kube: Kube, own: str) -> None:
    """Clears the holder of the Lease, as a leader does at its end. The next leader need not wait for the expiry."""
    metadata = {"name": "unmask-operator", "namespace": own}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    kube.apply(lease)
    kube.patch(lease, {"spec": {"holderIdentity": ""}})


def wait_granted(kube: Kube, own: str, watched: Collection[str]) -> None:
    """Waits until the API server's authorizer, which watches roles and bindings, allows what `grant` granted."""
    user = f"system:serviceaccount:{own}:{ACCOUNT}"
    first = {scope: next(r for r in RULES if r.scope == scope) for scope in ("watched", "own")}
    asked = [(NODE_RULE, ""), (first["own"], own), *((first["watched"], namespace) for namespace in watched or [""])]
    for rule, namespace in asked:
        verb = sorted(rule.verbs)[0]
        wait_allowed(kube, user, verb, group=rule.group, resource=rule.resource, namespace=namespace)


def wait_owners(api: ApiServer, own: str, namespace: str) -> None:
    """Waits until the API server accepts the CRD's objects as owners of others.

    It discovers new kinds every 30 s. Until then it rejects such owners for accounts that may not finalize every kind.
    """
    operator = api.admin(user=f"system:serviceaccount:{own}:{ACCOUNT}")
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "none", "uid": "none", "blockOwnerDeletion": True}
    metadata = {"generateName": "owned-", "namespace": namespace, "ownerReferences": [owner]}
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    def known() -> bool:
        try:
            operator.create(child, dryRun="All")
        except ApiError as error:
            if error.status == 403:  # the service account's permissions may not be effective yet either
                return False
            raise
        return True

    try:
        operator.wait(f"{KIND} may own", known)
    finally:
        operator.close()


def activator_pod(kube: Kube, own: str, address: str = "192.0.2.1") -> None:
    """Creates the EndpointSlice of a Ready pod of the activator, from which the operator reads the address."""
    metadata = {"name": ACTIVATOR, "namespace": own, "labels": {"kubernetes.io/service-name": ACTIVATOR}}
    endpoints = [{"addresses": [address], "conditions": {"ready": True}}]
    kube.create(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata,
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [],
        }
    )


class OperatorProcess:
    """Runs `python -m unmask_operator` with the service account of `install`.

    Args:
        selector: selector of the resources' labels.
        watched: namespaces; empty is the whole cluster.
        own_limits: runs the installed program. Otherwise `operator_main` runs: its Lease does not expire on a slow
            machine.
        settings: further settings, as in the fields of `Settings`.
    """

    account = ACCOUNT

    def __init__(
        self,
        api: ApiServer,
        own: str,
        watched: Iterable[str] = (),
        name: str = "a",
        selector: str = "",
        own_limits: bool = False,
        **settings: str,
    ) -> None:
        self._command = [sys.executable, "-m", "unmask_operator" if own_limits else "e2e.cluster.operator_main"]
        self.kubeconfig = api.service_account_kubeconfig(own, self.account)
        (self.port,) = free_ports(1)
        prefix = "UNMASK_OPERATOR_"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(api.directory),
            "PYTHONPATH": f"{ROOT / 'operator'}{os.pathsep}{ROOT}",
            "KUBECONFIG": str(self.kubeconfig),
            f"{prefix}NAMESPACE": own,
            f"{prefix}POD_NAME": f"operator-{name}",
            f"{prefix}DEPLOYMENT": ACCOUNT,
            f"{prefix}WATCH_NAMESPACES": ",".join(watched),
            f"{prefix}WATCH_SELECTOR": selector,
            f"{prefix}PORT": str(self.port),
            f"{prefix}READ_NODES": "true",
            f"{prefix}KEDA": "true",
            f"{prefix}DRA": "true",
            f"{prefix}GATEWAY": "true",
            f"{prefix}LWS": "true",
            f"{prefix}ACTIVATOR": ACTIVATOR,
            f"{prefix}LOG_FORMAT": "json",
            **{f"{prefix}{setting.upper()}": value for setting, value in settings.items()},
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OperatorProcess:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.kill()
        if kind is not None:
            print(f"--- log of the operator\n{self.log()}---")
        self._log.close()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, wait: bool = True) -> None:
        self.process = subprocess.Popen(
            self._command, env=self._environment, stderr=self._log, stdout=self._log, cwd=ROOT
        )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.alive(), f"the operator ended:\n{self.log()}"
            return self.status("/readyz") == 200

        try:
            wait_until(ready, "the operator is ready")
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def status(self, path: str) -> int:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=TIMEOUT, trust_env=False).status_code
        except httpx.HTTPError:
            return 0

    def metric(self, line: str) -> float:
        """Returns the value of a metric's line, or 0.0 if there is none."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=TIMEOUT, trust_env=False).text
        return next((float(row.split()[-1]) for row in text.splitlines() if row.startswith(line + " ")), 0.0)

    def wait(self) -> int:
        """Waits until the process ends by itself, and returns its exit status."""
        assert self.process is not None
        return self.process.wait(TIMEOUT)

    def kill(self) -> None:
        """Sends SIGKILL. The process may have ended already."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> int:
        """Sends SIGTERM and returns the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def log(self) -> str:
        return written(self._log)


class ActivatorProcess(OperatorProcess):
    """Runs `python -m unmask_operator.activator` with an account that has the rights of `ACTIVATOR_RULES` alone."""

    account = ACTIVATOR

    def __init__(self, api: ApiServer, kube: Kube, own: str) -> None:
        kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACTIVATOR, "namespace": own}})
        subject = {"kind": "ServiceAccount", "name": ACTIVATOR, "namespace": own}
        _bind(kube, "Role", ACTIVATOR, own, ACTIVATOR_RULES, subject)
        super().__init__(api, own, [own])
        self._command[-1] = "unmask_operator.activator"


def cluster_wide(api_server: ApiServer, admin: Kube) -> Iterator[OperatorProcess]:
    """Yields an installed operator of the whole cluster. Asserts at the end that it is healthy and leads."""
    name = "unmask-system"
    if admin.find("v1", "Namespace", name) is None:
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    install(api_server, admin, name, [])
    with OperatorProcess(api_server, name) as process:
        yield process
        process.wait_ready()
        assert process.status("/healthz") == 200
        assert process.metric("unmask_operator_leader") == 1
        assert "Traceback" not in process.log()

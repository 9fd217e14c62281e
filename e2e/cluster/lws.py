"""Runs the controller of LeaderWorkerSet as a process beside a cluster that `up` started."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from e2e.cluster import binaries
from e2e.cluster.config import environment
from e2e.cluster.kube import Kube, Obj
from e2e.cluster.node.network import Network
from e2e.cluster.pki import Authority
from e2e.cluster.process import free_ports, spawn, stop
from e2e.cluster.records import load_all

# The controller watches both kinds, and ends if one is missing.
_CRDS = "config/crd/bases"
_WEBHOOKS = "config/webhook/manifests.yaml"
_PODS = [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]


def lws_crds() -> list[Obj]:
    """Returns the CRDs of the module, that of LeaderWorkerSet last."""
    files = sorted((binaries.module_directory("lws", "sigs.k8s.io/lws", environment()) / _CRDS).glob("*.yaml"))
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]


@contextlib.contextmanager
def run_lws(kube: Kube, config: Path) -> Iterator[None]:
    """Installs the CRDs and webhooks, and runs the controller in the cluster's network namespace during the block.

    Without its webhooks the controller creates ControllerRevisions without end, so they are installed first.

    Args:
        config: the kubeconfig of the cluster.

    Raises:
        LookupError: another tool started the cluster.
    """
    env = environment()
    record = next((one for one in load_all(env.cache) if one.directory == config.parent), None)
    if record is None:
        raise LookupError(f"{config}: was not started by `python -m e2e.cluster up`")
    program, authority = binaries.build(["lws"], env)["lws"], Authority("lws")
    webhook, probes, metrics = free_ports(3)
    folder = record.directory / "lws"
    folder.mkdir(exist_ok=True)
    authority.issue("lws", hosts=["127.0.0.1"]).write(folder, "tls")
    settings = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": webhook, "host": "127.0.0.1", "certDir": str(folder)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probes}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    installed = [*lws_crds(), *_webhooks(f"https://127.0.0.1:{webhook}", authority)]
    enter = Network(record.number).enter
    flags = (f"--config={folder / 'config.json'}", f"--kubeconfig={config}")
    daemon = None
    try:
        for obj in installed:
            kube.define(obj) if obj["kind"] == "CustomResourceDefinition" else kube.apply(obj)
        daemon = spawn("lws", [*enter, program, *flags], record.directory / "logs", tied=True)
        yield
    finally:
        for obj in reversed(installed):
            kube.undefine(obj) if obj["kind"] == "CustomResourceDefinition" else kube.delete(obj)
        if daemon:
            stop([daemon])


def _webhooks(url: str, authority: Authority) -> list[Obj]:
    """Returns the module's webhook configurations, with a URL in place of a Service."""
    path = binaries.module_directory("lws", "sigs.k8s.io/lws", environment()) / _WEBHOOKS
    bundle = base64.b64encode(authority.certificate).decode()
    found = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for configuration in found:
        configuration["metadata"]["name"] = f"lws-{configuration['metadata']['name']}"
        for webhook in configuration["webhooks"]:
            target = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": url + target, "caBundle": bundle}
            if target.endswith("-pod"):
                webhook["objectSelector"] = {"matchExpressions": _PODS}
    return found

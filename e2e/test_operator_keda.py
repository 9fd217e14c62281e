"""Test of provider KEDA with KEDA's own operator, which runs as a process beside the node's daemons.

It is compiled from `cluster/go/keda` once, which takes many minutes. There is no metrics adapter and no webhook, so
KEDA scales between 0 and 1 here, and the HorizontalPodAutoscaler that it creates has no metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster import Kube
from e2e.cluster.binaries import build, module_directory
from e2e.cluster.config import environment
from e2e.cluster.kube import Obj
from e2e.cluster.node.network import Network
from e2e.cluster.pki import Authority
from e2e.cluster.process import spawn, stop
from e2e.host import audit_log
from e2e.load import load
from e2e.release import Release
from e2e.scripts import python_pod
from e2e.services import POD_TIMEOUT, ask, demo, get, pods, wait_condition

SCALED_OBJECT = ("keda.sh/v1alpha1", "ScaledObject", "demo-engine")
CALLER = "caller"
COOLDOWN = {"scaleDown": {"stabilizationWindowSeconds": 30}}
WAKES = {"type": "kubernetes-workload", "metadata": {"podSelector": f"app={CALLER}", "value": "1"}}
SCALING = {
    "provider": "KEDA",
    "minReplicas": 0,
    "maxReplicas": 1,
    "pollingIntervalSeconds": 1,
    "behavior": COOLDOWN,
    "keda": {"triggers": [WAKES]},
}


@pytest.fixture
def keda(kube: Kube, tmp_path: Path) -> Iterator[None]:
    """Installs KEDA's CRDs and starts its operator in the node's network, where it can reach pods."""
    if not audit_log().exists():
        pytest.skip("needs the node's network at hand: a cluster that `up` started")
    env = environment()
    program = build(["keda"], env)["keda"]
    folder = module_directory("keda", "github.com/kedacore/keda/v2", env) / "config" / "crd" / "bases"
    crds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]
    for crd in crds:
        kube.define(crd)
    authority = Authority("keda")
    pair = authority.issue("keda", hosts=["localhost"])
    for name, content in {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}.items():
        (tmp_path / name).write_bytes(content)
    network = Network(int(audit_log().parent.name))
    variables = {"KUBECONFIG": str(env.kubeconfig), "WATCH_NAMESPACE": "", "POD_NAMESPACE": "default"}
    variables["KEDA_CLUSTER_OBJECT_NAMESPACE"] = "default"
    daemon = spawn(
        "keda",
        [
            *network.enter, "env", *(f"{name}={value}" for name, value in variables.items()),
            program, f"--cert-dir={tmp_path}", "--enable-cert-rotation=false", "--metrics-bind-address=127.0.0.1:18080",
            "--health-probe-bind-address=127.0.0.1:18081", "--metrics-service-bind-address=127.0.0.1:18082",
        ],
        tmp_path,
        tied=True,
    )  # fmt: skip
    yield
    assert daemon.alive(), daemon.tail()
    stop([daemon])
    for crd in crds:
        kube.undefine(crd)


def wait_asleep(kube: Kube, namespace: str) -> None:
    wait_condition(kube, namespace, reason="Asleep")
    kube.wait("no pod", lambda: not pods(kube, namespace), timeout=POD_TIMEOUT)
    assert get(kube, namespace)["spec"]["replicas"] == 0


@pytest.mark.usefixtures("keda")
def test_keda_lets_a_service_sleep_wakes_it_and_waits_for_running_requests(
    kube: Kube, namespace: str, release: Release
) -> None:
    release.upgrade({"keda.enabled": True})
    service = kube.create(demo(namespace, spec={"replicas": None, "autoscaling": SCALING}))
    wait_asleep(kube, namespace)

    caller = kube.create(python_pod(namespace, CALLER, ["-c", "import time; time.sleep(86400)"]))
    wait_condition(kube, namespace, reason="Ready")
    assert "42" in ask(kube, namespace)
    with load(kube, namespace) as running:
        kube.delete(caller)

        def only_running_requests() -> bool:
            live = kube.get(*SCALED_OBJECT, namespace)
            triggers: Obj = live.get("status", {}).get("triggersActivity") or {}
            active = [name for name, one in triggers.items() if one.get("isActive")]
            return len(active) == 1 and "unmask_requests_running" in active[0]

        kube.wait("the trigger of the running requests alone", only_running_requests, timeout=POD_TIMEOUT)
        running.served()
    wait_asleep(kube, namespace)

    kube.delete(service)
    kube.wait("no ScaledObject", lambda: not kube.find(*SCALED_OBJECT, namespace), timeout=POD_TIMEOUT)

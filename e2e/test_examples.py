"""Tests of the manifests in examples/, which a user can apply without changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from e2e.cluster import Kube
from e2e.services import EXAMPLES, condition, get, kubectl, wait_condition


@pytest.mark.smoke
@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_api_server_accepts_each_example(kube: Kube, namespace: str, file: Path) -> None:
    output = kubectl("apply", "--dry-run=server", "-f", "-", namespace=namespace, stdin=placed(file.name, namespace))
    assert all("server dry run" in line for line in output.splitlines()), output


def placed(example: str, namespace: str) -> str:
    """Returns the text of an example, in which `namespace` replaces the namespace that it creates."""
    objects = list(yaml.safe_load_all((EXAMPLES / example).read_text()))
    made = {one["metadata"]["name"] for one in objects if one["kind"] == "Namespace"}
    for one in objects:
        if one["kind"] == "Namespace":
            one["metadata"]["name"] = namespace
        elif one["metadata"].get("namespace") in made:
            one["metadata"]["namespace"] = namespace
    return yaml.safe_dump_all(objects)


def test_the_hardened_service_runs_at_the_restricted_level(kube: Kube, namespace: str) -> None:
    """test_hardened.py covers API keys and the permissions of the pods."""
    kubectl(
        "create",
        "secret",
        "generic",
        "demo-keys",
        "--from-literal=keys=one-of-two-demo-keys,the-other-of-two-keys",
        namespace=namespace,
    )
    kubectl("apply", "-f", "-", namespace=namespace, stdin=placed("hardened.yaml", namespace))
    wait_condition(kube, namespace, "Ready", name="demo-hardened")
    level = kube.get("v1", "Namespace", namespace)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert level == "restricted"
    assert get(kube, namespace, "demo-hardened")["status"]["modelName"] == "helpdesk"
    assert kube.find("networking.k8s.io/v1", "NetworkPolicy", "demo-hardened-engine", namespace)
    assert kube.find("policy/v1", "PodDisruptionBudget", "demo-hardened-engine", namespace)


def test_the_autoscaled_service_is_scaled(kube: Kube, namespace: str) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "autoscaled.yaml"), namespace=namespace)
    wait_condition(kube, namespace, "Ready", name="demo-autoscaled")
    wait_condition(kube, namespace, "ScalingReady", name="demo-autoscaled", reason="Active")
    service = get(kube, namespace, "demo-autoscaled")
    assert service["status"]["autoscaling"]["desired"] == 1
    assert condition(service, "ScalingReady")["message"]


def test_a_missing_kind_is_named(kube: Kube, namespace: str) -> None:
    """Uses `monitoring.podMonitor` without the Prometheus operator's CustomResourceDefinition."""
    if kube.find("apiextensions.k8s.io/v1", "CustomResourceDefinition", "podmonitors.monitoring.coreos.com"):
        pytest.skip("this cluster has PodMonitors")
    service = yaml.safe_load((EXAMPLES / "demo-service.yaml").read_text())
    service["spec"] |= {"monitoring": {"podMonitor": {}}, "replicas": 0}
    kubectl("apply", "-f", "-", namespace=namespace, stdin=yaml.safe_dump(service))
    named = wait_condition(kube, namespace, "UpToDate", "False", reason="MissingCRD")
    assert "podmonitors.monitoring.coreos.com" in named["message"]

"""Tests of docs/operations/backup-restore.md: a resource restored from kubectl's output gets all its children."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from e2e.cluster import Kube
from e2e.scripts import Client, text
from e2e.services import EXAMPLES, LABEL, demo, get, kubectl, wait_condition

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SCALING = {"provider": "Builtin", "minReplicas": 1, "maxReplicas": 2, "targets": {"queuedRequestsPerReplica": 4}}
CHILDREN = {
    "ControllerRevision": "apps/v1",
    "Deployment": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "Service": "v1",
    "ServiceAccount": "v1",
}


def children(kube: Kube, namespace: str) -> dict[str, str]:
    """Returns the uid of each child of the namespace's services, by kind and name."""
    found = [one for kind, api in CHILDREN.items() for one in kube.list(api, kind, namespace, labelSelector=LABEL)]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"] for item in found}


def test_a_service_is_restored_from_kubectl_output(kube: Kube, namespace: str, tmp_path: Path) -> None:
    # The backup of an autoscaled service has `replicas` as well as `autoscaling`.
    service = demo(namespace, spec={"autoscaling": SCALING, "networkPolicy": {}})
    kubectl("apply", "-f", "-", namespace=namespace, stdin=yaml.safe_dump(service))
    wait_condition(kube, namespace)
    before, was = get(kube, namespace), children(kube, namespace)
    assert before["spec"]["replicas"] == 1
    backup = tmp_path / "services.yaml"
    backup.write_text(kubectl("get", "dlms", "-o", "yaml", "--show-managed-fields", namespace=namespace))
    for member in ("uid:", "resourceVersion:", "managedFields:", "status:", "autoscaling:", "replicas: 1"):
        assert member in backup.read_text()

    # Without a wait, so that the old children still exist. The garbage collector deletes them, and new ones follow.
    kubectl("delete", "dlms", "demo", namespace=namespace)
    kubectl("apply", "-f", str(backup), namespace=namespace)
    wait_condition(kube, namespace)
    after, now = get(kube, namespace), children(kube, namespace)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    assert now.keys() == was.keys()
    assert {child.partition("/")[0] for child in now} == set(CHILDREN)
    assert not set(now.values()) & set(was.values()), "a child of the deleted service still exists"
    assert "42" in text(Client(kube, namespace).ask())


@pytest.mark.parametrize("verb", ["create", "apply"])
def test_the_manifest_can_be_applied_after_a_restore(namespace: str, tmp_path: Path, verb: str) -> None:
    manifest = str(EXAMPLES / "demo-service.yaml")
    kubectl("apply", "-f", manifest, namespace=namespace)
    backup = tmp_path / "services.yaml"
    backup.write_text(kubectl("get", "dlms", "-o", "yaml", namespace=namespace))
    kubectl("delete", "dlms", "demo", namespace=namespace)
    kubectl(verb, "-f", str(backup), namespace=namespace)
    # The last-applied annotation has the backup's resourceVersion, so kubectl tries to remove it.
    assert "resourceVersion" in kubectl("apply", "-f", manifest, namespace=namespace, refused=True)
    kubectl("annotate", "dlms", "--all", f"{LAST_APPLIED}-", namespace=namespace)
    kubectl("apply", "-f", manifest, namespace=namespace)
    kubectl(
        "patch", "dlms", "demo", "--type=merge", "-p", '{"spec": {"engine": {"maxNumReqs": 8}}}', namespace=namespace
    )
    kubectl("apply", "-f", manifest, namespace=namespace)
    assert kubectl("get", "dlms", "demo", "-o", "jsonpath={.spec.engine.maxNumReqs}", namespace=namespace) == "16"

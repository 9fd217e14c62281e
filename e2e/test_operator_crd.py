"""A chart with another CRD: an upgrade brings it, the resources stay, and no engine notices."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.release import CHART, NAMESPACE, Release
from e2e.services import condition, demo, engines, get, kubectl, patch, wait_condition

CRD = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "diffusionlmservices.serving.unmask.dev")
COLUMN = {"name": "Older", "type": "string", "jsonPath": ".spec.model.uri"}


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The chart with a CRD that lacks a field, `spec.suspend`, and shows a column that ours does not."""
    chart = tmp_path / CHART.name
    shutil.copytree(CHART, chart)
    (file,) = (chart / "files" / "crds").glob("*.yaml")
    crd = yaml.safe_load(file.read_text())
    (version,) = crd["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["suspend"]
    version["additionalPrinterColumns"].append(COLUMN)
    file.write_text(yaml.safe_dump(crd))
    return chart


def version(kube: Kube) -> Obj:
    (only,) = kube.get(*CRD)["spec"]["versions"]
    found: Obj = only
    return found


def knows_suspend(kube: Kube, namespace: str) -> bool:
    """Whether the API server keeps the field: it goes by a changed CRD a moment after the change."""
    asked = kube.create(demo(namespace, "asked", {"suspend": True}), dryRun="All")
    return "suspend" in asked["spec"]


@pytest.mark.timeout(2000)
def test_an_upgrade_brings_the_crd_and_the_resources_stay(
    kube: Kube, namespace: str, release: Release, older: Path
) -> None:
    release.upgrade(chart=older)
    assert COLUMN in version(kube)["additionalPrinterColumns"]
    kube.wait("the older schema", lambda: not knows_suspend(kube, namespace), timeout=60)
    kube.create(demo(namespace))
    wait_condition(kube, namespace)
    service, before = get(kube, namespace), engines(kube, namespace)
    said = kubectl("patch", "dlms", "demo", "--type=merge", "-p", '{"spec":{"suspend":true}}', namespace=namespace)
    assert "no change" in said  # pruned: that CRD does not know the field

    release.restore()
    assert COLUMN not in version(kube)["additionalPrinterColumns"]
    kube.wait("the newer schema", lambda: knows_suspend(kube, namespace), timeout=60)
    now = get(kube, namespace)
    assert now["metadata"]["uid"] == service["metadata"]["uid"]
    assert now["spec"] == service["spec"] | {"suspend": False}  # a new field's default is no edit
    assert condition(now, "Ready")["status"] == "True"
    patch(kube, namespace, {"service": {"annotations": {"somebody": "asks"}}})  # what restarts no pod
    wait_condition(kube, namespace, "UpToDate")  # so the operator that came with the chart has looked at it
    wait_condition(kube, namespace)
    assert engines(kube, namespace) == before
    patch(kube, namespace, {"suspend": True})  # the field works now
    wait_condition(kube, namespace, "Ready", "False", reason="Suspended")


@pytest.mark.timeout(1200)
def test_the_crd_is_left_alone_without_crds_enabled(kube: Kube, release: Release, older: Path) -> None:
    crd = kube.get(*CRD)
    release.upgrade({"crds.enabled": False}, chart=older)
    assert kube.get(*CRD)["metadata"]["resourceVersion"] == crd["metadata"]["resourceVersion"]
    assert kube.find("v1", "Namespace", NAMESPACE)

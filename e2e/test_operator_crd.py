"""Tests of an operator with an older or newer CRD: the resources stay, and no engine restarts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.load import ENOUGH, load
from e2e.release import CRDS_CHART, NAMESPACE, RELEASE, Release
from e2e.services import condition, demo, engines, get, kubectl, patch, wait_condition

CRD = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "diffusionlmservices.serving.unmask.dev")
COLUMN = {"name": "Older", "type": "string", "jsonPath": ".spec.model.uri"}


def chart_with(directory: Path, change: Callable[[Obj], None]) -> Path:
    """Returns a copy of the CRD's chart after `change` has edited the CRD's only version."""
    chart = directory / CRDS_CHART.name
    shutil.copytree(CRDS_CHART, chart)
    (file,) = (chart / "files" / "crds").glob("*.yaml")
    crd = yaml.safe_load(file.read_text())
    change(crd["spec"]["versions"][0])
    file.write_text(yaml.safe_dump(crd))
    return chart


def fields(version: Obj) -> Obj:
    """Returns the schema's properties of the spec."""
    found: Obj = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return found


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Returns a chart whose CRD lacks the field `spec.suspend` and has an additional printer column."""

    def change(version: Obj) -> None:
        del fields(version)["suspend"]
        version["additionalPrinterColumns"].append(COLUMN)

    return chart_with(tmp_path, change)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """Returns a chart whose CRD has two fields that are unknown to the operator."""

    def change(version: Obj) -> None:
        fields(version)["ofTomorrow"] = {"type": "integer", "description": "Nobody knows."}
        fields(version)["engine"]["properties"]["warp"] = {"type": "boolean", "description": "Nobody knows."}
        version["additionalPrinterColumns"].append(COLUMN)

    return chart_with(tmp_path, change)


def version(kube: Kube) -> Obj:
    (only,) = kube.get(*CRD)["spec"]["versions"]
    found: Obj = only
    return found


def knows(kube: Kube, namespace: str, field: str, value: object) -> bool:
    """Returns whether the API server stores this field of the spec. A changed CRD takes effect after a short delay."""
    return field in kube.create(demo(namespace, "asked", {field: value}), dryRun="All")["spec"]


def test_an_upgrade_of_the_crd_keeps_the_resources(kube: Kube, namespace: str, release: Release, older: Path) -> None:
    release.crds(older)
    assert COLUMN in version(kube)["additionalPrinterColumns"]
    kube.wait("the older schema", lambda: not knows(kube, namespace, "suspend", True))
    kube.create(demo(namespace))
    wait_condition(kube, namespace)
    service, before = get(kube, namespace), engines(kube, namespace)
    output = kubectl("patch", "dlms", "demo", "--type=merge", "-p", '{"spec":{"suspend":true}}', namespace=namespace)
    assert "no change" in output  # the API server prunes the field, which the older CRD lacks

    with load(kube, namespace) as under:
        release.restore()
        assert COLUMN not in version(kube)["additionalPrinterColumns"]
        kube.wait("the newer schema", lambda: knows(kube, namespace, "suspend", True))
        now = get(kube, namespace)
        assert now["metadata"]["uid"] == service["metadata"]["uid"]
        assert now["spec"] == service["spec"]  # the API server adds no new field
        assert condition(now, "Ready")["status"] == "True"
        patch(kube, namespace, {"service": {"annotations": {"somebody": "asks"}}})  # restarts no pod
        wait_condition(kube, namespace, "UpToDate")
        wait_condition(kube, namespace)
        assert engines(kube, namespace) == before
        under.served()
    patch(kube, namespace, {"suspend": True})  # the field works now
    wait_condition(kube, namespace, "Ready", "False", reason="Suspended")


def test_an_operator_reports_unknown_fields_of_a_newer_crd(
    kube: Kube, namespace: str, release: Release, newer: Path
) -> None:
    """This state occurs if GitOps upgrades the CRD first, or if the newer operator's image cannot be pulled."""
    kube.create(demo(namespace))
    wait_condition(kube, namespace)
    before = engines(kube, namespace)
    with load(kube, namespace) as under:
        release.crds(newer)
        assert COLUMN in version(kube)["additionalPrinterColumns"]
        kube.wait("the newer schema", lambda: knows(kube, namespace, "ofTomorrow", 1))
        patch(kube, namespace, {"ofTomorrow": 1, "engine": {"warp": True}, "service": {"annotations": {"a": "b"}}})
        accepted = wait_condition(kube, namespace, "Accepted", says="spec.ofTomorrow")
        assert "spec.engine.warp" in accepted["message"]
        kube.wait("the edit", lambda: "a" in kube.get("v1", "Service", "demo", namespace)["metadata"]["annotations"])
        assert engines(kube, namespace) == before

        # The operator is upgraded and rolled back. The newer CRD and the stored fields stay.
        release.upgrade({"log.level": "debug"})
        release.roll_back()
        assert COLUMN in version(kube)["additionalPrinterColumns"]
        assert get(kube, namespace)["spec"]["ofTomorrow"] == 1
        assert get(kube, namespace)["spec"]["engine"]["warp"] is True
        assert engines(kube, namespace) == before
        under.served(ENOUGH)


def test_the_operators_release_does_not_change_the_crd(kube: Kube, release: Release) -> None:
    crd = kube.get(*CRD)
    release.upgrade({"log.level": "debug"})
    release.roll_back()
    assert kube.get(*CRD)["metadata"]["resourceVersion"] == crd["metadata"]["resourceVersion"]
    assert kube.find("apps/v1", "Deployment", RELEASE, NAMESPACE)

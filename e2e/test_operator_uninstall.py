"""Test of an uninstalled operator: engines keep serving and are adopted after a reinstall. A purge leaves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import yaml

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.cluster.node.images import ROOT
from e2e.listing import Key, everything, versions
from e2e.release import CRDS, NAMESPACE, RELEASE, Release, helm
from e2e.services import API, KIND, POD_TIMEOUT, ask, demo, engines, kubectl, patch, wait_condition

GROUP = API.partition("/")[0]
PURGE = ("delete", "crd", "diffusionlmservices.serving.unmask.dev")  # as in docs/operations/install.md and chart notes
CRD: Key = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", PURGE[2])
SERVED: Key = ("apiregistration.k8s.io/v1", "APIService", "", f"v1alpha1.{GROUP}")  # the API server makes it for a CRD


@pytest.fixture
def nobody_elses(kube: Kube) -> None:
    """Fails the test if the cluster has DiffusionLMServices of others, because a purge would delete them."""
    for service in kube.list(API, KIND):
        name = service["metadata"]["namespace"]
        namespace = kube.find("v1", "Namespace", name)
        if namespace and "deletionTimestamp" not in namespace["metadata"]:  # an earlier test's may still be terminating
            pytest.fail(f"{name} has DiffusionLMServices, which this test would delete: move them, or leave it out")


def purge(kube: Kube, release: Release) -> None:
    assert f"\nkubectl {' '.join(PURGE)}\n" in (ROOT / "docs/operations/install.md").read_text()
    kubectl(*PURGE, namespace=NAMESPACE)
    release.uninstall_crds()
    kube.wait("the API server forgets the API", lambda: API not in versions(kube), timeout=POD_TIMEOUT)


def ours(found: dict[Key, Obj]) -> set[Key]:
    """Returns the keys of all objects that the charts or the operator created, or other controllers for those.

    All other objects are unrelated and may change during the test.
    """
    return {key for key, obj in found.items() if _marked(key, obj["metadata"])}


def _marked(key: Key, meta: Obj) -> bool:
    labels = meta.get("labels") or {}
    releases = (RELEASE, CRDS)
    chart = labels.get("app.kubernetes.io/instance") in releases or labels.get("name") in releases  # helm's own Secrets
    owners = [owner["apiVersion"] for owner in meta.get("ownerReferences") or ()]
    groups = [key[0], key[3], *labels, *(meta.get("annotations") or ()), *owners]
    writers = {entry.get("manager") for entry in meta.get("managedFields") or ()}
    return chart or RELEASE in key[3] or RELEASE in writers or any(GROUP in group for group in groups)


def chart_made() -> set[tuple[str, str]]:
    """Returns kind and name of each object in the release's manifest."""
    objects = yaml.safe_load_all(helm("get", "manifest", RELEASE))
    return {(obj["kind"], obj["metadata"]["name"]) for obj in objects if obj}


def wait_none(what: str, kube: Kube, left: Callable[[], set[Key]]) -> None:
    """Waits until `left` is empty, because controllers delete dependents only after their owner is gone."""
    with contextlib.suppress(TimeoutError):
        kube.wait(what, lambda: not left(), timeout=POD_TIMEOUT)
    assert left() == set(), what


@pytest.mark.smoke
@pytest.mark.usefixtures("nobody_elses")
def test_uninstall_and_purge_leave_nothing_behind(kube: Kube, namespace: str, release: Release) -> None:
    release.uninstall()
    purge(kube, release)
    wait_none("the first life leaves nothing", kube, lambda: ours(everything(kube)))
    nothing = everything(kube)

    release.crds()
    release.upgrade({"networkPolicy.enabled": True, "monitoring.dashboard.enabled": True})
    kube.create(demo(namespace, spec={"replicas": 2, "networkPolicy": {}}))
    wait_condition(kube, namespace)
    before = engines(kube, namespace)
    assert len(before) == 2
    # `ours` must include all objects of the chart, and all new objects in the two namespaces.
    there = everything(kube)
    assert chart_made() <= {(kind, name) for _, kind, _, name in ours(there)}
    assert new(there, nothing, namespace) <= ours(there)

    release.uninstall()
    stays = {key for key in ours(everything(kube)) if f".{CRDS}." in key[3]} | {CRD, SERVED}
    wait_none("an uninstall leaves the CRD", kube, lambda: elsewhere(ours(everything(kube)), namespace) - stays)
    left = ours(everything(kube))
    assert CRD in left
    assert {"DiffusionLMService", "Deployment", "Service", "Pod", "NetworkPolicy", "PodDisruptionBudget"} <= {
        kind for _, kind, _, _ in left
    }
    assert "42" in ask(kube, namespace)

    release.upgrade()
    patch(kube, namespace, {"service": {"annotations": {"somebody": "is back"}}})  # restarts no pod
    wait_condition(kube, namespace, "RolloutComplete")
    service = kube.get("v1", "Service", "demo", namespace)
    assert service["metadata"]["annotations"]["somebody"] == "is back"
    assert engines(kube, namespace) == before
    assert "42" in ask(kube, namespace)

    release.uninstall()
    purge(kube, release)

    def stranded() -> set[Key]:
        now = everything(kube)
        return ours(now) | new(now, nothing, namespace)

    wait_none("a purge leaves nothing", kube, stranded)


def new(now: dict[Key, Obj], then: dict[Key, Obj], namespace: str) -> set[Key]:
    """Returns the keys of all new objects in the release's namespace and in the test's, regardless of the creator."""
    return {key for key in now.keys() - then.keys() if key[2] in (NAMESPACE, namespace)}


def elsewhere(keys: set[Key], namespace: str) -> set[Key]:
    return {key for key in keys if key[2] != namespace}

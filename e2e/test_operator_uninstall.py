"""The operator goes and comes back: engines serve on; then everything goes, and nothing of ours is left anywhere."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.cluster.node.images import ROOT
from e2e.listing import Key, everything, versions
from e2e.release import NAMESPACE, RELEASE, Release, operators
from e2e.services import API, KIND, ask, demo, engines, kubectl, patch, wait_condition

PURGE = ("delete", "crd", "diffusionlmservices.serving.unmask.dev")  # as docs/install.md and the chart's notes say
CRD: Key = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", PURGE[2])


@pytest.fixture
def nobody_elses(kube: Kube) -> None:
    """This test purges: on a cluster with services of somebody's it must not run."""
    for service in kube.list(API, KIND):
        place = service["metadata"]["namespace"]
        namespace = kube.find("v1", "Namespace", place)
        if namespace and "deletionTimestamp" not in namespace["metadata"]:  # an earlier test's is on its way out
            pytest.fail(f"{place} has DiffusionLMServices, which this test would delete: move them, or leave it out")


def purge(kube: Kube) -> None:
    assert f"\nkubectl {' '.join(PURGE)}\n" in (ROOT / "docs" / "install.md").read_text()
    kubectl(*PURGE, namespace=NAMESPACE)
    kube.wait("the API server forgets the API", lambda: API not in versions(kube))


def ours(found: dict[Key, Obj]) -> set[Key]:
    """What the chart or the operator made: by label, name or kind."""
    return {key for key, obj in found.items() if key[0] == API or key == CRD or _marked(key[3], obj["metadata"])}


def _marked(name: str, meta: Obj) -> bool:
    labels = meta.get("labels") or {}
    chart = labels.get("app.kubernetes.io/instance") == RELEASE or labels.get("name") == RELEASE  # helm's own Secrets
    return chart or RELEASE in name or any("serving.unmask.dev" in key for key in labels)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("nobody_elses")
def test_uninstall_and_purge_strand_nothing(kube: Kube, namespace: str, release: Release) -> None:
    release.uninstall()
    purge(kube)
    kube.wait("all is gone", lambda: not ours(everything(kube)), timeout=120)
    nothing = everything(kube)

    release.upgrade({"networkPolicy.enabled": True, "monitoring.dashboard.enabled": True})
    kube.create(demo(namespace, spec={"replicas": 2, "networkPolicy": {}}))
    wait_condition(kube, namespace)
    before = engines(kube, namespace)
    assert len(before) == 2

    release.uninstall()
    kube.wait("its pods are gone", lambda: not operators(kube))
    left = ours(everything(kube))
    elsewhere = {key for key in left if key[2] != namespace}
    assert elsewhere == {CRD}
    assert {"DiffusionLMService", "Deployment", "Service", "Pod", "NetworkPolicy", "PodDisruptionBudget"} <= {
        kind for _, kind, _, _ in left
    }
    assert "42" in ask(kube, namespace)

    release.upgrade()
    patch(kube, namespace, {"service": {"annotations": {"somebody": "is back"}}})  # what restarts no pod
    wait_condition(kube, namespace, "RolloutComplete")
    service = kube.get("v1", "Service", "demo", namespace)
    assert service["metadata"]["annotations"]["somebody"] == "is back"
    assert engines(kube, namespace) == before
    assert "42" in ask(kube, namespace)

    release.uninstall()
    purge(kube)
    kube.wait("the engines are collected", lambda: not ours(everything(kube)), timeout=120)
    new = everything(kube).keys() - nothing.keys()
    assert {key for key in new if key[2] != "kube-system"} == set()  # where the cluster keeps its own house

"""A release on a real API server: everything is accepted, and an uninstall takes everything away."""

import shutil

import pytest
import yaml

from tests.operator.helm import CHART, CRDS, REGISTRY, helm, render, render_crds, sets

pytestmark = pytest.mark.cluster
FOREIGN = ("ServiceMonitor", "PrometheusRule")  # kinds of the Prometheus operator, which is not there
KINDS = (
    ("v1", "ServiceAccount"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("apps/v1", "Deployment"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
)


def test_the_api_server_takes_every_object_without_a_warning(admin, namespace):
    values = {f"monitoring__{part}__enabled": True for part in ("serviceMonitor", "prometheusRule", "dashboard")}
    peers = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}]
    for obj in render(networkPolicy__metricsFrom=peers, **values) + render_crds():
        if obj["kind"] not in FOREIGN:
            if "namespace" in obj["metadata"]:
                obj["metadata"]["namespace"] = namespace
            admin.apply(obj, dryRun="All", fieldValidation="Strict")


def test_install_upgrade_and_uninstall_leave_nothing(api_server, admin, namespace):
    cluster = ("--kubeconfig", str(api_server.kubeconfig), "--namespace", namespace)
    values = {**REGISTRY, "networkPolicy.enabled": True, "monitoring.dashboard.enabled": True}

    def made():
        label = {"labelSelector": "app.kubernetes.io/managed-by=Helm,app.kubernetes.io/instance=mine"}
        found = [(kind, obj) for version, kind in KINDS for obj in admin.list(version, kind, **label)]
        place = [(kind, obj, obj["metadata"]) for kind, obj in found]
        here = [(kind, obj) for kind, obj, at in place if namespace in (at.get("namespace"), at["name"].split(":")[0])]
        return {(kind, obj["metadata"]["name"]): obj for kind, obj in here}

    assert "every namespace" in helm("install", "mine", str(CHART), *cluster, *sets(values))
    installed = made()
    assert len(installed) == 15
    helm("upgrade", "mine", str(CHART), *cluster, *sets({**values, "replicas": 1, "watchNamespaces": [namespace]}))
    upgraded = made()
    assert ("PodDisruptionBudget", "mine-unmask-operator") not in upgraded
    assert ("Role", "mine-unmask-operator-engines") in upgraded
    assert ("ClusterRole", f"{namespace}:mine-unmask-operator") not in upgraded
    helm("uninstall", "mine", *cluster)
    assert made() == {}


def test_the_crd_only_rolls_forward(api_server, admin, namespace, tmp_path):
    """An older chart is refused, and `helm rollback` of the operator's release leaves the newer one alone."""
    (crd,) = render_crds()
    admin.delete(crd)
    admin.wait("its end", lambda: admin.find(crd["apiVersion"], crd["kind"], crd["metadata"]["name"]) is None)
    cluster = ("--kubeconfig", str(api_server.kubeconfig), "--namespace", namespace)
    newer = tmp_path / "unmask-crds"
    shutil.copytree(CRDS, newer)
    about = yaml.safe_load((newer / "Chart.yaml").read_text())
    (newer / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.2.0"}))

    def live():
        return admin.get(crd["apiVersion"], crd["kind"], crd["metadata"]["name"])["metadata"]

    try:
        helm("install", "crds", str(CRDS), *cluster)
        helm("install", "mine", str(CHART), *cluster, *sets(REGISTRY))
        helm("upgrade", "crds", str(newer), *cluster)
        helm("upgrade", "mine", str(CHART), *cluster, *sets({**REGISTRY, "replicas": 1}))
        before = live()["resourceVersion"]
        helm("rollback", "mine", "1", *cluster)
        with pytest.raises(ValueError, match=r"is of version 0\.2\.0 already, and this chart is 0\.1\.0"):
            helm("upgrade", "crds", str(CRDS), *cluster)
        assert live()["resourceVersion"] == before
        helm("uninstall", "mine", *cluster)
        helm("uninstall", "crds", *cluster)
        assert live()["annotations"]["serving.unmask.dev/crds-version"] == "0.2.0"
    finally:
        admin.delete(crd)  # other tests apply their own

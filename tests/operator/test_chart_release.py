"""Tests of a release on a real API server: it accepts every object, and an uninstall removes every object."""

import shutil

import pytest
import yaml

from tests.operator.helm import CHART, CRDS, REGISTRY, helm, render, render_crds, sets

pytestmark = pytest.mark.cluster
FOREIGN = ("ServiceMonitor", "PrometheusRule")  # kinds of the Prometheus operator, which is not installed
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


def test_the_api_server_accepts_every_object_without_a_warning(admin, namespace):
    values = {f"monitoring__{part}__enabled": True for part in ("serviceMonitor", "prometheusRule", "dashboard")}
    peers = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}]
    labels, annotations = {"team": "a", "example.com/x": ""}, {"example.com/owner": "A, B"}
    values |= {"commonLabels": labels, "commonAnnotations": annotations, "podLabels": {"pod": "x"}}
    values |= {
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraEnvFrom": [{"secretRef": {"name": "proxy", "optional": True}}],
        "extraVolumes": [{"name": "ca", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        "imagePullSecrets": ["a", {"name": "b"}],
        "podSecurityContext": {"fsGroup": 1000},
        "securityContext": {"runAsUser": 1000},
        "service": {"annotations": annotations},
        "deploymentAnnotations": annotations,
    }
    for obj in render(networkPolicy__metricsFrom=peers, **values) + render_crds(commonLabels=labels):
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
        directory = [(kind, obj, obj["metadata"]) for kind, obj in found]
        here = [
            (kind, obj) for kind, obj, at in directory if namespace in (at.get("namespace"), at["name"].split(":")[0])
        ]
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


@pytest.fixture
def no_crd(admin):
    """Yields the CRD. It is not installed before and after the test, because other tests apply their own."""
    (crd,) = render_crds()
    admin.undefine(crd)
    yield crd
    admin.undefine(crd)


def of_version(chart, version, directory):
    """Returns a copy of a chart with another version."""
    copy = directory / f"{chart.name}-{version}"
    shutil.copytree(chart, copy)
    about = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": version}))
    return copy


def test_pre_releases_of_the_crd_precede_the_release(api_server, admin, namespace, no_crd, tmp_path):
    cluster = ("--kubeconfig", str(api_server.kubeconfig), "--namespace", namespace)
    charts = {version: of_version(CRDS, version, tmp_path) for version in ("0.2.0-rc.1", "0.2.0-rc.2", "0.2.0")}
    helm("install", "crds", str(charts["0.2.0-rc.1"]), *cluster)
    for older, newer in (("0.2.0-rc.1", "0.2.0-rc.2"), ("0.2.0-rc.2", "0.2.0"), ("0.2.0-rc.1", "0.2.0")):
        helm("upgrade", "crds", str(charts[newer]), *cluster)
        with pytest.raises(ValueError, match=f"has version {newer}, which is newer than version {older} of this chart"):
            helm("upgrade", "crds", str(charts[older]), *cluster)


OLD_LEASE = """\
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: {{ include "unmask.fullname" . }}
  namespace: {{ .Release.Namespace }}
"""
OLD_CRDS = """\
{{- if .Values.crds.enabled }}
{{- $crd := .Files.Get "files/crds.yaml" | fromYaml }}
{{- $_ := set $crd.metadata "annotations" (dict "helm.sh/resource-policy" "keep") }}
{{ toYaml $crd }}
{{- end }}
"""


@pytest.fixture
def old_chart(tmp_path):
    """Returns an older version of the operator's chart, which contained the CRD and the Lease."""
    chart = of_version(CHART, "0.0.9", tmp_path)
    deployment = chart / "templates" / "deployment.yaml"
    deployment.write_text(deployment.read_text().partition("{{- end }}\n")[2])  # without the check of the value crds
    values = chart / "values.yaml"
    values.write_text(values.read_text() + "\ncrds: {enabled: true}\n")
    (chart / "templates" / "lease.yaml").write_text(OLD_LEASE)
    (chart / "templates" / "crds.yaml").write_text(OLD_CRDS)
    shutil.copy(next((CRDS / "files" / "crds").glob("*.yaml")), chart / "files" / "crds.yaml")
    return chart


def test_downgrade_to_a_chart_that_contained_the_crd_and_the_lease(api_server, admin, namespace, no_crd, old_chart):
    """Follows docs/operations/rolling-upgrade.md for the case that `helm rollback` fails."""
    cluster = ("--kubeconfig", str(api_server.kubeconfig), "--namespace", namespace)
    helm("install", "mine", str(old_chart), *cluster, *sets(REGISTRY))
    helm("install", "crds", str(CRDS), "--take-ownership", *cluster)
    helm("upgrade", "mine", str(CHART), *cluster, *sets(REGISTRY))
    about = {"name": "mine-unmask-operator", "namespace": namespace}
    assert admin.find("coordination.k8s.io/v1", "Lease", about["name"], namespace) is None
    crd = admin.get(no_crd["apiVersion"], no_crd["kind"], no_crd["metadata"]["name"])["metadata"]
    admin.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about})  # as the operator does

    with pytest.raises(ValueError, match=r"Lease|CustomResourceDefinition"):
        helm("rollback", "mine", "1", *cluster)
    back = ("--take-ownership", "--set", "crds.enabled=false")
    helm("upgrade", "mine", str(old_chart), *back, *cluster, *sets(REGISTRY))
    lease = admin.get("coordination.k8s.io/v1", "Lease", about["name"], namespace)
    assert lease["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    assert admin.get(no_crd["apiVersion"], no_crd["kind"], crd["name"])["metadata"]["uid"] == crd["uid"]

    message = "crds: this value was removed, because the chart unmask-crds contains the CustomResourceDefinition"
    with pytest.raises(ValueError, match=message):
        helm("upgrade", "mine", str(CHART), "--reset-then-reuse-values", *cluster)
    helm("upgrade", "mine", str(CHART), "--reset-then-reuse-values", "--set", "crds=null", *cluster)
    helm("uninstall", "mine", *cluster)
    helm("uninstall", "crds", *cluster)


def test_the_crd_cannot_be_downgraded(api_server, admin, namespace, no_crd, tmp_path):
    """Checks that an older chart is rejected. `helm rollback` of the operator's release keeps the newer CRD."""
    crd = no_crd
    cluster = ("--kubeconfig", str(api_server.kubeconfig), "--namespace", namespace)
    newer = of_version(CRDS, "0.2.0", tmp_path)

    def live():
        return admin.get(crd["apiVersion"], crd["kind"], crd["metadata"]["name"])["metadata"]

    helm("install", "crds", str(CRDS), *cluster)
    helm("install", "mine", str(CHART), *cluster, *sets(REGISTRY))
    helm("upgrade", "crds", str(newer), *cluster)
    helm("upgrade", "mine", str(CHART), *cluster, *sets({**REGISTRY, "replicas": 1}))
    before = live()["resourceVersion"]
    helm("rollback", "mine", "1", *cluster)
    with pytest.raises(ValueError, match=r"has version 0\.2\.0, which is newer than version 0\.1\.0 of this chart"):
        helm("upgrade", "crds", str(CRDS), *cluster)
    assert live()["resourceVersion"] == before
    helm("uninstall", "mine", *cluster)
    helm("uninstall", "crds", *cluster)
    assert live()["annotations"]["serving.unmask.dev/crds-version"] == "0.2.0"

"""Tests of a release on a real API server: it accepts every object, and an uninstall removes every object."""

import shutil
from functools import partial

import pytest
import yaml

from tests.operator.helm import CHART, CRDS, REGISTRY, helm, render, render_crds, sets

pytestmark = pytest.mark.cluster
FOREIGN = ("ServiceMonitor", "PrometheusRule")  # kinds of the Prometheus operator, which is not installed
RBAC = "rbac.authorization.k8s.io/v1"
KINDS = (
    *(("v1", kind) for kind in ("ServiceAccount", "Service", "ConfigMap")),
    *((RBAC, kind) for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")),
    ("apps/v1", "Deployment"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
)


@pytest.fixture
def run(api_server, namespace):
    """Returns a function that runs helm in the test's namespace: a command, its release, and further arguments."""
    return partial(_run, ("--kubeconfig", str(api_server.kubeconfig), "--namespace", namespace))


def _run(cluster, command, release, *arguments, **values):
    return helm(command, release, *map(str, arguments), *cluster, *sets(values))


def test_the_api_server_accepts_every_object_without_a_warning(admin, namespace):
    labels, annotations = {"team": "a", "example.com/x": ""}, {"example.com/owner": "A, B"}
    objects = render(
        networkPolicy__metricsFrom=[{"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}],
        monitoring={part: {"enabled": True} for part in ("serviceMonitor", "prometheusRule", "dashboard")},
        commonLabels=labels, commonAnnotations=annotations, podLabels={"pod": "x"},
        extraEnv=[{"name": "A", "value": "b"}], extraEnvFrom=[{"secretRef": {"name": "proxy", "optional": True}}],
        extraVolumes=[{"name": "ca", "emptyDir": {}}], extraVolumeMounts=[{"name": "ca", "mountPath": "/ca"}],
        imagePullSecrets=["a", {"name": "b"}], podSecurityContext={"fsGroup": 1000},
        securityContext={"runAsUser": 1000}, service={"annotations": annotations}, deploymentAnnotations=annotations,
    )  # fmt: skip
    for obj in (*objects, *render_crds(commonLabels=labels)):
        if obj["kind"] not in FOREIGN:
            if "namespace" in obj["metadata"]:
                obj["metadata"]["namespace"] = namespace
            admin.apply(obj, dryRun="All", fieldValidation="Strict")


def test_install_upgrade_and_uninstall_leave_nothing(run, admin, namespace):
    values = {**REGISTRY, "networkPolicy.enabled": True, "monitoring.dashboard.enabled": True}

    def made():
        label = {"labelSelector": "app.kubernetes.io/managed-by=Helm,app.kubernetes.io/instance=mine"}
        found = [(kind, obj["metadata"]) for version, kind in KINDS for obj in admin.list(version, kind, **label)]
        return {
            (kind, at["name"]) for kind, at in found if namespace in (at.get("namespace"), at["name"].split(":")[0])
        }

    assert "every namespace" in run("install", "mine", CHART, **values)
    assert {kind for kind, _ in made()} == {kind for _, kind in KINDS}
    run("upgrade", "mine", CHART, **values, replicas=1, watchNamespaces=[namespace])
    upgraded = made()
    assert ("PodDisruptionBudget", "mine-unmask-operator") not in upgraded
    assert ("Role", "mine-unmask-operator-engines") in upgraded
    assert ("ClusterRole", f"{namespace}:mine-unmask-operator") not in upgraded
    run("uninstall", "mine")
    assert made() == set()


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


def test_the_crd_cannot_be_downgraded_and_outlives_its_release(run, admin, no_crd, tmp_path):
    """Pre-releases precede the release."""

    def live():
        return admin.get(no_crd["apiVersion"], no_crd["kind"], no_crd["metadata"]["name"])["metadata"]

    run("install", "crds", CRDS)
    charts = {"0.1.0": CRDS} | {name: of_version(CRDS, name, tmp_path) for name in ("0.2.0-rc.1", "0.2.0")}
    for older, newer in (("0.1.0", "0.2.0-rc.1"), ("0.2.0-rc.1", "0.2.0")):
        run("upgrade", "crds", charts[newer])
        with pytest.raises(ValueError, match=f"has version {newer}, which is newer than version {older} of this chart"):
            run("upgrade", "crds", charts[older])
    uid = live()["uid"]
    run("uninstall", "crds")
    assert (live()["uid"], live()["annotations"]["serving.unmask.dev/crds-version"]) == (uid, "0.2.0")

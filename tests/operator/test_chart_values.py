"""Tests of the charts' values: what each changes, which are refused, and nulls instead of each value and section."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operator.chart_samples import ALL, DIGEST, TOLERATIONS, container, one, settings
from tests.operator.helm import CHART, CRDS, REGISTRY, helm, parse_objects, render, render_crds, sets
from unmask_operator.settings import VERSION

pytestmark = pytest.mark.programs
LABELS = {"team": "platform", "example.com/cost-center": "", "app.kubernetes.io/part-of": "inference"}
ANNOTATIONS = {"example.com/owner": "Platform, on call"}
LINUX = {"kubernetes.io/os": "linux"}
LABEL = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"  # value of a label


def pod(objects):
    return one(objects, "Deployment")["spec"]["template"]


def test_every_object_of_both_charts_has_the_common_labels_and_annotations():
    common = {"commonLabels": LABELS, "commonAnnotations": ANNOTATIONS}
    cluster_wide, namespaced = render(**ALL, **common), render(**ALL, **common, watchNamespaces=["a", "b"])
    objects = [*cluster_wide, *namespaced]
    sources = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").glob("*.yaml"))
    kinds = set(re.findall(r"^kind: (\w+)$", sources, re.MULTILINE))
    assert {obj["kind"] for obj in objects} >= kinds | {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    (crd,) = render_crds(commonLabels=LABELS, annotations=ANNOTATIONS)
    assert crd["metadata"]["labels"]["app.kubernetes.io/name"] == "unmask-crds"
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for obj in (*objects, pod(namespaced), crd):
        assert obj["metadata"]["labels"].items() >= LABELS.items(), obj.get("kind")
        assert obj["metadata"]["annotations"].items() >= ANNOTATIONS.items(), obj.get("kind")


@pytest.mark.parametrize("release", ["my.release", "1st"])
def test_a_release_without_a_valid_name_for_a_service_is_refused(release):
    """Helm accepts these names. Its installation would end at the Service, after the other objects."""
    options = (release, str(CHART), "--kube-version", "1.34.4")
    with pytest.raises(ValueError, match=f"fullnameOverride: is not set, and the name {release}-unmask-operator"):
        helm("template", *options, *sets(REGISTRY))
    assert helm("template", *options, *sets({**REGISTRY, "fullnameOverride": "llm"}))


POD: dict[str, Any] = {
    "affinity": {"nodeAffinity": {}}, "priorityClassName": "system-cluster-critical", "runtimeClassName": "gvisor",
    "tolerations": TOLERATIONS,
}  # fmt: skip
ENV = [{"name": "P", "value": "http://proxy"}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
ZONE = {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
OWN = {**ZONE, "labelSelector": {"matchLabels": {"a": "b"}}}
SELECTOR = {"app.kubernetes.io/name": "unmask-operator", "app.kubernetes.io/instance": "unmask-operator"}
SPREAD = {"labelSelector": {"matchLabels": SELECTOR}, "matchLabelKeys": ["pod-template-hash"]}
NODES = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
OWN_NAME = {"app.kubernetes.io/name": "inference", "app.kubernetes.io/instance": "unmask-operator"}
SAFE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
DUAL = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}
CONTEXT = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
NO_OS, BOTH = {"kubernetes.io/os": None}, {**LINUX, "kubernetes.io/arch": "arm64"}
# Values, and what a path leads to: `main` (the container), `settings` (the operator's), `pod` or a kind, then members.
# None: absent.
EFFECTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"podLabels": {"a": "b"}}, {"Deployment spec template metadata labels a": "b"}),
    ({"podLabels": {"a": "b"}, "commonLabels": LABELS},
     {"Deployment spec selector matchLabels": SELECTOR, "Service spec selector": SELECTOR,
      "NetworkPolicy spec podSelector matchLabels": SELECTOR, "settings operator_selector": SELECTOR}),
    ({"podAnnotations": {"a": "b"}}, {"Deployment spec template metadata annotations": {"a": "b", **SAFE}}),
    ({"deploymentAnnotations": {"a": "b"}}, {"Deployment metadata annotations": {"a": "b"}}),
    ({"podSecurityContext": {"fsGroup": 1, "seccompProfile": None}},
     {"pod securityContext": {"runAsNonRoot": True, "fsGroup": 1}}),
    ({"podSecurityContext": {"runAsNonRoot": None, "seccompProfile": None}}, {"pod securityContext": {}}),
    ({"securityContext": {"runAsUser": 1000, "capabilities": None}},
     {"main securityContext": {**CONTEXT, "runAsUser": 1000}}),
    ({}, {"main image": f"registry.example/team/unmask-operator:{VERSION}"}),
    ({"global__imageRegistry": "localhost/a", "image__tag": "x", "image__digest": DIGEST},
     {"main image": f"localhost/a/unmask-operator:x@{DIGEST}"}),
    ({"global__imageRegistry": "", "image__repository": "host:5000/op", "engine__image__repository": "ghcr.example/r"},
     {"main image": f"host:5000/op:{VERSION}"}),
    ({"extraEnvFrom": [{"secretRef": {"name": "proxy"}}]}, {"main envFrom": [{"secretRef": {"name": "proxy"}}]}),
    ({"nodeSelector": {"pool": "system"}}, {"pod nodeSelector": {**LINUX, "pool": "system"}}),
    ({"nodeSelector": NO_OS}, {"pod nodeSelector": None}),
    ({"resources": {"limits": {"memory": "512Mi"}}}, {"main resources limits": {"memory": "512Mi"}}),
    ({"serviceAccount": {"annotations": {"a": "b"}}}, {"ServiceAccount metadata annotations": {"a": "b"}}),
    ({"service": {"annotations": {"a": "b"}}}, {"Service metadata annotations": {"a": "b"}}),
    ({"service": DUAL}, {f"Service spec {name}": value for name, value in DUAL.items()}),
    ({}, {"Service spec ipFamilyPolicy": None, "Service spec ipFamilies": None, "pod imagePullSecrets": None}),
    (POD, {f"pod {name}": value for name, value in POD.items()}),
    ({"imagePullSecrets": ["a", {"name": "b"}]}, {"pod imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
    ({"global__imagePullSecrets": ["a", "b"], "imagePullSecrets": ["b"]},
     {"pod imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
    ({"topologySpreadConstraints": [ZONE, OWN]},
     {"pod topologySpreadConstraints": [{**ZONE, **SPREAD}, OWN]}),
    ({}, {"pod topologySpreadConstraints": [{**NODES, **SPREAD}]}),
    ({"topologySpreadConstraints": []}, {"pod topologySpreadConstraints": None}),
    ({"nameOverride": "inference"},
     {"Deployment metadata name": "unmask-operator-inference", "Deployment spec selector matchLabels": OWN_NAME,
      "settings operator_selector": OWN_NAME}),
    ({"engine__imagePullSecrets": ["a", {"name": "b"}]}, {"settings image_pull_secrets": ("a", "b")}),
    ({"engine": {"nodeSelector": BOTH}}, {"settings engine_node_selector": BOTH}),
    ({"engine": {"nodeSelector": NO_OS}}, {"settings engine_node_selector": {}}),
    ({"fullnameOverride": "llm"}, {"settings lease_name": "llm", "settings deployment": "llm"}),
    ({"monitoring__dashboard": {"enabled": True, "labels": {"grafana_dashboard": None}}},
     {"ConfigMap metadata labels grafana_dashboard": None}),
]  # fmt: skip


def at(objects: list[Any], path: str) -> Any:
    root, *members = path.split(" ")
    roots = {"pod": lambda: pod(objects)["spec"], "main": lambda: container(objects),
             "settings": lambda: vars(settings(objects))}  # fmt: skip
    found = roots[root]() if root in roots else one(objects, root)
    for member in members:
        found = found.get(member, {} if member != members[-1] else None)
    return found


@pytest.mark.parametrize(("values", "expected"), EFFECTS, ids=json.dumps)
def test_a_value_reaches_its_object(values: dict[str, Any], expected: dict[str, Any]) -> None:
    objects = render(**values)
    assert {path: at(objects, path) for path in expected} == expected


def test_variables_and_volumes_are_added_to_the_charts_own():
    volume, mount = {"name": "ca", "configMap": {"name": "ca"}}, {"name": "ca", "mountPath": "/ca"}
    objects = render(extraEnv=ENV, extraVolumes=[volume], extraVolumeMounts=[mount])
    main = container(objects)
    assert main["env"][-2:] == ENV
    assert [each["name"] for each in pod(objects)["spec"]["volumes"]] == ["tmp", "ca"]
    assert [each["mountPath"] for each in main["volumeMounts"]] == ["/tmp", "/ca"]


def test_all_names_follow_the_full_name():
    objects = render(fullnameOverride="llm", **ALL)
    names = {obj["metadata"]["name"].removeprefix("unmask-system:") for obj in objects}
    assert {name.partition(":")[0].removesuffix("-dashboard") for name in names} == {"llm"}
    rules = one(objects, "Role")["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [["llm"], ["llm"]]


def test_names_that_yaml_reads_as_another_type_stay_text():
    name = "123"
    values = {
        **REGISTRY,
        "fullnameOverride": "op",
        **dict.fromkeys(("priorityClassName", "runtimeClassName", "serviceAccount.name", "engine.caConfigMap"), name),
        **{key: [name] for key in ("imagePullSecrets", "watchNamespaces")},
    }
    made = parse_objects(
        helm("template", name, str(CHART), "--namespace", name, "--kube-version", "1.34.4", *sets(values))
    )
    assert {obj["metadata"].get("namespace", name) for obj in made} == {name}
    assert {obj["metadata"]["labels"]["app.kubernetes.io/instance"] for obj in made} == {name}
    spec = pod(made)["spec"]
    assert {spec["serviceAccountName"], spec["priorityClassName"], spec["runtimeClassName"]} == {name}
    assert spec["imagePullSecrets"] == [{"name": name}]
    found = settings(made)
    assert (found.ca_config_map, found.watch_namespaces) == (name, (name,))
    assert found.operator_selector["app.kubernetes.io/instance"] == name
    assert one(made, "ClusterRoleBinding")["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": name}]


RESERVED = (
    *(f"app.kubernetes.io/{part}" for part in ("name", "instance", "component", "version", "managed-by")),
    *("helm.sh/chart", "pod-template-hash", "rbac.authorization.k8s.io/aggregate-to-admin"),
)
NO_REGISTRY = "has no registry; set global.imageRegistry"
TOLERATION = "gpuEngines__tolerations"
WRONG = [
    ({"replicas": 0}, "replicas"),
    ({"global__imageRegistry": ""}, NO_REGISTRY),  # nodes would choose a registry themselves
    ({"global__imageRegistry": "", "image__repository": "host:5000/operator"}, f"image unmask-runtime: {NO_REGISTRY}"),
    ({"image__repository": "r2.example/x/op"}, "image.repository: r2.example/x/op has a registry"),
    ({"engine__image__repository": "localhost/x"}, "engine.image.repository: localhost/x has a registry"),
    ({"global__imageRegistry": "https://registry.example"}, "/global/imageRegistry"),
    ({"image__tag": "latest"}, "image.tag: latest is not supported"),
    ({"image__digest": "sha256:12"}, "digest"),
    ({"image__repository": "team/unmask-operator:1.0"}, "/image/repository"),
    ({"engine__image__repository": "host:5000/unmask-runtime:1.0"}, "/engine/image/repository"),
    ({"watchSelector": "track in (canary)"}, "watchSelector"), ({"watchSelector": "!a=b"}, "watchSelector"),
    ({"engine__env": {"A": "x\ny"}}, "env"),
    ({"crds__enabled": False}, "crds: this value was removed, because the chart unmask-crds contains"),
    ({TOLERATION: [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations"),
    ({TOLERATION: [{"key": "a", "effects": "NoSchedule"}]}, "tolerations"),
    ({"gpuEngines__nodeSelector": {"a": "b c"}}, "nodeSelector"),
    ({"engine__nodeSelector": {"a": True}}, "nodeSelector"),
    ({"monitoring__serviceMonitor__enabled": True}, "networkPolicy.metricsFrom: is empty"),
    ({"networkPolicy__metricsFrom": [{}]}, "metricsFrom"),  # would allow every peer
    ({"networkPolicy__metricsFrom": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}, "metricsFrom"),
    ({"commonLabels": {"a": "b"}, "podLabels": {"a": "c"}}, "podLabels: a is also in commonLabels"),
    ({"commonAnnotations": {"helm.sh/hook": "pre-install"}}, "commonAnnotations: helm.sh/hook would prevent Helm"),
    ({"podAnnotations": {"meta.helm.sh/release-name": "x"}}, "podAnnotations: meta.helm.sh/release-name would"),
    ({"extraEnv": [{"name": "UNMASK_OPERATOR_PORT", "value": "1"}]}, "extraEnv: UNMASK_OPERATOR_PORT is a setting"),
    ({"commonLabels": {"a": "b c"}}, "commonLabels"), ({"podLabels": {"a": "b" * 64}}, "podLabels"),
    ({"fullnameOverride": "a" * 51}, "fullnameOverride"), ({"nameOverride": "a/b"}, "nameOverride"),
    ({"imagePullSecrets": [{"names": "a"}]}, "imagePullSecrets"),
    ({"topologySpreadConstraints": [{"topologyKey": "a"}]}, "topologySpreadConstraints"),
    ({"service": {"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "SingleStack"}}, "service"),
    *(({"commonLabels": {key: "x"}}, f"commonLabels: {key} is set by the chart or by Kubernetes") for key in RESERVED),
    ({"podLabels": {"helm.sh/chart": "x"}}, "podLabels: helm.sh/chart is set by the chart or by Kubernetes"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=json.dumps)
def test_wrong_values_are_refused_by_name(values, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        render(**values)


def test_an_older_cluster_and_a_reserved_label_of_the_crd_are_refused():
    with pytest.raises(ValueError, match=r"1\.30"):
        render("1.29.9")
    with pytest.raises(ValueError, match=r"commonLabels: app\.kubernetes\.io/name is set by the chart; remove it"):
        render_crds(commonLabels={"app.kubernetes.io/name": "x"})


def paths(values, prefix=""):
    for name, value in values.items():
        path = f"{prefix}{name.replace('.', chr(92) + '.')}"
        yield path
        if isinstance(value, dict):
            yield from paths(value, f"{path}.")


def keys(chart):
    return list(paths(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))))


# Required values, with the error message without them.
NEEDED = {
    **dict.fromkeys(("global", "global.imageRegistry"), NO_REGISTRY),
    **dict.fromkeys(("image", "image.repository"), "image.repository: is not set"),
    **dict.fromkeys(("engine", "engine.image", "engine.image.repository"), "engine.image.repository: is not set"),
}


@pytest.mark.parametrize("path", keys(CHART))
def test_a_null_value_means_its_default_or_is_refused_with_one_sentence(path):
    name = re.sub(r"(?<!\\)\.", "__", path)
    values = {name: None} if path.startswith("networkPolicy") else {**ALL, name: None}
    if path == "global":  # the tests' own registry is set after it
        values["global__imageRegistry"] = None
    if path in NEEDED:
        with pytest.raises(ValueError, match=re.escape(NEEDED[path])) as caught:
            render(**values)
        assert "nil pointer" not in str(caught.value)
        return
    objects = render(**values)
    text = json.dumps(objects)
    assert ": null" not in text
    assert "<nil>" not in text
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    settings(objects)


def test_a_null_value_of_the_crds_chart_means_none():
    assert render_crds(**dict.fromkeys(keys(CRDS))) == render_crds()


@pytest.mark.parametrize("chart", [CHART, CRDS], ids=lambda chart: chart.name)
def test_a_build_of_ones_own_has_valid_labels_and_tags(chart: Path, tmp_path: Path) -> None:
    """Semantic versions may have a + and be long. Labels and tags of images may not."""
    copy = tmp_path / chart.name
    shutil.copytree(chart, copy)
    about = yaml.safe_load((copy / "Chart.yaml").read_text())
    version = f"0.1.0+g1{'a' * 60}"
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": version, "appVersion": version}))
    for obj in parse_objects(
        helm("template", "a", str(copy), "--kube-version", "1.34.4", *sets(REGISTRY if chart == CHART else {}))
    ):
        labels = obj["metadata"]["labels"]
        assert all(re.fullmatch(LABEL, value) for value in labels.values()), labels
        for main in obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            assert main["image"].endswith(f"unmask-operator:{version.replace('+', '_')}")

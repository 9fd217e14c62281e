"""Tests of the charts' values: what each changes, which are refused, and nulls instead of each value and section."""

import json
import re

import pytest
import yaml

from tests.operator.helm import CHART, CRDS, REGISTRY, helm, parse_objects, render, render_crds, sets
from tests.operator.test_chart import ALL, TOLERATIONS, container, one, settings

pytestmark = pytest.mark.programs
LABELS = {"team": "platform", "example.com/cost-center": "", "app.kubernetes.io/part-of": "inference"}
ANNOTATIONS = {"example.com/owner": "Platform, on call"}
LINUX = {"kubernetes.io/os": "linux"}


def pod(objects):
    return one(objects, "Deployment")["spec"]["template"]


def pod_spec(**values):
    return pod(render(**values))["spec"]


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


def test_no_selector_has_the_common_labels_or_those_of_the_pods():
    def selectors(objects):
        specs = [obj.get("spec", {}) for obj in objects]
        found = [spec.get(member) for spec in specs for member in ("selector", "podSelector")]
        found += [spread["labelSelector"] for spread in pod(objects)["spec"]["topologySpreadConstraints"]]
        return [*found, settings(objects).operator_selector]

    assert selectors(render(**ALL)) == selectors(render(**ALL, commonLabels=LABELS, podLabels={"pod": "x"}))


def test_the_pods_values_reach_the_pods():
    env = [{"name": "P", "value": "http://proxy"}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
    same = {
        "tolerations": TOLERATIONS,
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "runtimeClassName": "gvisor",
    }
    objects = render(
        podLabels={"pod": "label"},
        podAnnotations={"pod": "annotation"},
        deploymentAnnotations={"deployment": "annotation"},
        podSecurityContext={"fsGroup": 1, "seccompProfile": None},
        securityContext={"runAsUser": 1000, "capabilities": None},
        extraEnv=env,
        extraEnvFrom=[{"secretRef": {"name": "proxy"}}],
        extraVolumes=[{"name": "ca", "configMap": {"name": "ca"}}],
        extraVolumeMounts=[{"name": "ca", "mountPath": "/ca"}],
        nodeSelector={"pool": "system"},
        resources={"limits": {"memory": "512Mi"}},
        serviceAccount={"annotations": {"cloud": "role"}},
        service={"annotations": {"a": "b"}, "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        **same,
    )
    made, main = pod(objects), container(objects)
    assert made["metadata"]["labels"]["pod"] == "label"
    kept = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    assert made["metadata"]["annotations"] == {"pod": "annotation", **kept}
    assert one(objects, "Deployment")["metadata"]["annotations"] == {"deployment": "annotation"}
    assert one(objects, "ServiceAccount")["metadata"]["annotations"] == {"cloud": "role"}
    service = one(objects, "Service")
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert (service["spec"]["ipFamilyPolicy"], service["spec"]["ipFamilies"]) == ("RequireDualStack", ["IPv6", "IPv4"])
    assert not {"ipFamilyPolicy", "ipFamilies"} & one(render(), "Service")["spec"].keys()
    spec = made["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "fsGroup": 1}
    context = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsUser": 1000}
    assert main["securityContext"] == context
    assert (main["env"][-2:], main["envFrom"]) == (env, [{"secretRef": {"name": "proxy"}}])
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp", "ca"]
    assert [mount["mountPath"] for mount in main["volumeMounts"]] == ["/tmp", "/ca"]
    assert spec["nodeSelector"] == {**LINUX, "pool": "system"}
    assert {member: spec[member] for member in same} == same
    assert main["resources"]["limits"] == {"memory": "512Mi"}


@pytest.mark.parametrize("form", [["a", "b"], ["a", {"name": "b"}]], ids=json.dumps)
def test_pull_secrets_are_names_or_objects_with_a_name(form):
    expected = [{"name": "a"}, {"name": "b"}]
    objects = render(global__imagePullSecrets=form, imagePullSecrets=["b"], engine__imagePullSecrets=form)
    assert pod(objects)["spec"]["imagePullSecrets"] == expected == pod_spec(imagePullSecrets=form)["imagePullSecrets"]
    assert settings(objects).image_pull_secrets == ("a", "b")
    assert "imagePullSecrets" not in pod_spec()


def test_names_can_be_replaced():
    objects = render(fullnameOverride="llm", nameOverride="inference", **ALL)
    names = {obj["metadata"]["name"].removeprefix("unmask-system:") for obj in objects}
    assert {name.partition(":")[0].removesuffix("-dashboard") for name in names} == {"llm"}
    selector = one(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert selector == {"app.kubernetes.io/name": "inference", "app.kubernetes.io/instance": "unmask-operator"}
    found = settings(objects)
    assert (found.lease_name, found.deployment, found.operator_selector) == ("llm", "llm", selector)
    rules = one(objects, "Role")["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [["llm"], ["llm"]]
    assert one(render(nameOverride="inference"), "Deployment")["metadata"]["name"] == "unmask-operator-inference"


@pytest.mark.parametrize("name", ["123", "true", "2024-01-01"])
def test_names_that_yaml_reads_as_another_type_stay_text(name):
    values = {
        **REGISTRY,
        "fullnameOverride": "op",
        "nameOverride": "on",
        "monitoring.dashboard.enabled": True,
        **dict.fromkeys(("priorityClassName", "runtimeClassName", "serviceAccount.name", "engine.caConfigMap"), name),
        **{key: [name] for key in ("imagePullSecrets", "watchNamespaces")},
    }
    options = ("--namespace", name, "--kube-version", "1.34.4")
    made = parse_objects(helm("template", name, str(CHART), *options, *sets(values)))
    selector = {"app.kubernetes.io/name": "on", "app.kubernetes.io/instance": name}
    for obj in made:
        assert obj["metadata"].get("namespace", name) == name
        assert obj["metadata"]["labels"].items() >= selector.items()
    spec = pod(made)["spec"]
    assert {spec["serviceAccountName"], spec["priorityClassName"], spec["runtimeClassName"]} == {name}
    assert spec["imagePullSecrets"] == [{"name": name}]
    assert spec["topologySpreadConstraints"][0]["labelSelector"] == {"matchLabels": selector}
    found = settings(made)
    assert (found.ca_config_map, found.watch_namespaces, found.operator_selector) == (name, (name,), selector)
    assert one(made, "ClusterRoleBinding")["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": name}]


@pytest.mark.parametrize("release", ["my.release", "1st"])
def test_a_release_without_a_valid_name_for_a_service_is_refused(release):
    """Helm accepts these names. Its installation would end at the Service, after the other objects."""
    options = (release, str(CHART), "--kube-version", "1.34.4")
    with pytest.raises(ValueError, match=f"fullnameOverride: is not set, and the name {release}-unmask-operator"):
        helm("template", *options, *sets(REGISTRY))
    assert helm("template", *options, *sets({**REGISTRY, "fullnameOverride": "llm"}))


def test_topology_spread_constraints_can_be_replaced_or_removed():
    zone = {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**zone, "labelSelector": {"matchLabels": {"a": "b"}}}
    objects = render(topologySpreadConstraints=[zone, own])
    selector = one(objects, "Deployment")["spec"]["selector"]
    assert pod(objects)["spec"]["topologySpreadConstraints"] == [{**zone, "labelSelector": selector}, own]
    assert "topologySpreadConstraints" not in pod_spec(topologySpreadConstraints=[])


def test_pods_of_operator_and_engines_run_on_linux_nodes():
    both = {**LINUX, "kubernetes.io/arch": "arm64"}
    objects, none = render(engine={"nodeSelector": both}), {"kubernetes.io/os": None}
    assert pod(objects)["spec"]["nodeSelector"] == LINUX
    assert settings(objects).engine_node_selector == both
    objects = render(engine={"nodeSelector": none}, nodeSelector=none)
    assert settings(objects).engine_node_selector == {}
    assert "nodeSelector" not in pod(objects)["spec"]


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
    ({"global__imageRegistry": "https://registry.example"}, "/global/imageRegistry"),
    ({"image__tag": "latest"}, "image.tag: latest is not supported"),
    ({"image__digest": "sha256:12"}, "digest"),
    ({"image__repository": "team/unmask-operator:1.0"}, "/image/repository"),
    ({"engine__image__repository": "host:5000/unmask-runtime:1.0"}, "/engine/image/repository"),
    ({"watchSelector": "track in (canary)"}, "watchSelector"),
    ({"watchSelector": "!a=b"}, "watchSelector"),
    ({"engine__env": {"A": 1}}, "env"),
    ({"engine__env": {"A": "x\ny"}}, "env"),
    ({"crds__enabled": False}, "crds: this value was removed, because the chart unmask-crds contains"),
    ({TOLERATION: [{"key": "a", "operator": "Is"}]}, "tolerations"),
    ({TOLERATION: [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations"),
    ({TOLERATION: [{"key": "a", "tolerationSeconds": 5}]}, "tolerations"),
    ({TOLERATION: [{"key": "a", "effects": "NoSchedule"}]}, "tolerations"),
    ({"gpuEngines__nodeSelector": {"a": "b c"}}, "nodeSelector"),
    ({"engine__nodeSelector": {"a": True}}, "nodeSelector"),
    ({"gpuEngines__affinity": {}}, "affinity"),
    ({"monitoring__serviceMonitor__enabled": True}, "networkPolicy.metricsFrom: is empty"),
    ({"networkPolicy__metricsFrom": [{}]}, "metricsFrom"),  # would allow every peer
    ({"networkPolicy__metricsFrom": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}, "metricsFrom"),
    ({"commonLabels": {"a": "b"}, "podLabels": {"a": "c"}}, "podLabels: a is also in commonLabels"),
    ({"commonAnnotations": {"helm.sh/hook": "pre-install"}}, "commonAnnotations: helm.sh/hook would prevent Helm"),
    ({"podAnnotations": {"meta.helm.sh/release-name": "x"}}, "podAnnotations: meta.helm.sh/release-name would"),
    ({"extraEnv": [{"name": "UNMASK_OPERATOR_PORT", "value": "1"}]}, "extraEnv: UNMASK_OPERATOR_PORT is a setting"),
    ({"commonLabels": {"a": "b c"}}, "commonLabels"),
    ({"commonLabels": {"a b": "c"}}, "commonLabels"),
    ({"podLabels": {"a": "b" * 64}}, "podLabels"),
    ({"fullnameOverride": "a" * 51}, "fullnameOverride"),
    ({"nameOverride": "a/b"}, "nameOverride"),
    ({"imagePullSecrets": [{"names": "a"}]}, "imagePullSecrets"),
    ({"topologySpreadConstraints": [{"topologyKey": "a"}]}, "topologySpreadConstraints"),
    ({"service__ipFamilyPolicy": "DualStack"}, "ipFamilyPolicy"),
    ({"service__ipFamilies": ["ipv6"]}, "ipFamilies"),
    ({"service": {"ipFamilies": ["IPv4", "IPv4"], "ipFamilyPolicy": "PreferDualStack"}}, "ipFamilies"),
    ({"service": {"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "SingleStack"}}, "service"),
    *(({"commonLabels": {key: "x"}}, f"commonLabels: {key} is set by the chart or by Kubernetes") for key in RESERVED),
    ({"podLabels": {"helm.sh/chart": "x"}}, "podLabels: helm.sh/chart is set by the chart or by Kubernetes"),
]


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


def test_a_release_without_the_newer_values_is_rendered_as_with_their_defaults():
    """`helm upgrade --reuse-values` has none of the later values. `crds` is one of earlier charts."""
    later = ("podSecurityContext", "securityContext", "topologySpreadConstraints", "podLabels", "commonLabels")
    assert render(**dict.fromkeys((*later, "gpuEngines", "service", "crds"))) == render()


def test_every_value_has_a_property_in_the_schema():
    for chart in (CHART, CRDS):
        schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
        values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
        assert values.keys() <= schema["properties"].keys()


def test_nulls_for_all_members_leave_an_empty_map():
    objects = render(
        podSecurityContext={"runAsNonRoot": None, "seccompProfile": None},
        securityContext={"allowPrivilegeEscalation": None, "readOnlyRootFilesystem": None, "capabilities": None},
        monitoring__dashboard={"enabled": True, "labels": {"grafana_dashboard": None}},
    )
    spec = pod(objects)["spec"]
    assert (spec["securityContext"], spec["containers"][0]["securityContext"]) == ({}, {})
    assert "grafana_dashboard" not in one(objects, "ConfigMap")["metadata"]["labels"]

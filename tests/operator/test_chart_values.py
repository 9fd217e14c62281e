"""Tests of values that charts of operators usually have, and of nulls instead of each value and section."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.operator.helm import CHART, CRDS, REGISTRY, helm, parse_objects, render, render_crds, sets
from tests.operator.test_chart import ALL, TOLERATIONS, container, one, settings

pytestmark = pytest.mark.programs
LABELS = {"team": "platform", "example.com/cost-center": "", "app.kubernetes.io/part-of": "inference"}
ANNOTATIONS = {"example.com/owner": "Platform, on call"}
RESERVED = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "pod-template-hash",
    "rbac.authorization.k8s.io/aggregate-to-admin",
    "rbac.authorization.k8s.io/aggregate-to-view",
)


def pod(objects):
    return one(objects, "Deployment")["spec"]["template"]


def test_every_object_of_both_charts_has_the_common_labels_and_annotations():
    common = {"commonLabels": LABELS, "commonAnnotations": ANNOTATIONS}
    objects = [*render(**ALL, **common), *render(**ALL, **common, watchNamespaces=["a", "b"])]
    kinds = {obj["kind"] for obj in objects}
    sources = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").glob("*.yaml"))
    named = set(re.findall(r"^kind: (\w+)$", sources, re.MULTILINE))
    assert kinds >= named | {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    for obj in (*objects, pod(render(**common))):
        assert obj["metadata"]["labels"].items() >= LABELS.items(), obj.get("kind")
        assert obj["metadata"]["annotations"].items() >= ANNOTATIONS.items(), obj.get("kind")
    (crd,) = render_crds(commonLabels=LABELS, annotations=ANNOTATIONS)
    assert crd["metadata"]["labels"].items() >= {**LABELS, "app.kubernetes.io/name": "unmask-crds"}.items()
    assert crd["metadata"]["annotations"].items() >= {**ANNOTATIONS, "helm.sh/resource-policy": "keep"}.items()


def test_no_selector_has_the_common_labels_or_those_of_the_pods():
    unlabelled, labelled = render(**ALL), render(**ALL, commonLabels=LABELS, podLabels={"pod": "x"})

    def selectors(objects):
        found = []
        for obj in objects:
            spec = obj.get("spec", {})
            found += [spec.get(member) for member in ("selector", "podSelector")]
        found += [spread["labelSelector"] for spread in pod(objects)["spec"]["topologySpreadConstraints"]]
        return [*found, settings(objects).operator_selector]

    assert selectors(unlabelled) == selectors(labelled)


def test_the_pods_values_reach_the_pods():
    env = [
        {"name": "HTTPS_PROXY", "value": "http://proxy"},
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
    ]
    values = {
        "podLabels": {"pod": "label"},
        "podAnnotations": {"pod": "annotation"},
        "deploymentAnnotations": {"deployment": "annotation"},
        "podSecurityContext": {"fsGroup": 1, "seccompProfile": None},
        "securityContext": {"runAsUser": 1000, "capabilities": None},
        "extraEnv": env,
        "extraEnvFrom": [{"secretRef": {"name": "proxy"}}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        "nodeSelector": {"pool": "system"},
        "tolerations": TOLERATIONS,
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "runtimeClassName": "gvisor",
        "resources": {"limits": {"memory": "512Mi"}},
        "serviceAccount": {"annotations": {"cloud": "role"}},
        "service": {"annotations": {"service": "annotation"}},
    }
    objects = render(**values)
    made, main = pod(objects), container(objects)
    assert made["metadata"]["labels"]["pod"] == "label"
    assert made["metadata"]["annotations"] == {
        "pod": "annotation",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
    }
    assert one(objects, "Deployment")["metadata"]["annotations"] == {"deployment": "annotation"}
    assert one(objects, "ServiceAccount")["metadata"]["annotations"] == {"cloud": "role"}
    assert one(objects, "Service")["metadata"]["annotations"] == {"service": "annotation"}
    spec = made["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "fsGroup": 1}
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsUser": 1000,
    }
    assert main["env"][-2:] == env
    assert main["envFrom"] == values["extraEnvFrom"]
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp", "ca"]
    assert [mount["mountPath"] for mount in main["volumeMounts"]] == ["/tmp", "/ca"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "system"}
    for member in ("tolerations", "affinity", "priorityClassName", "runtimeClassName"):
        assert spec[member] == values[member]
    assert main["resources"]["limits"] == {"memory": "512Mi"}


@pytest.mark.parametrize("form", [["a", "b"], [{"name": "a"}, {"name": "b"}], ["a", {"name": "b"}]], ids=json.dumps)
def test_pull_secrets_are_names_or_objects_with_a_name(form):
    expected = [{"name": "a"}, {"name": "b"}]
    assert pod(render(imagePullSecrets=form))["spec"]["imagePullSecrets"] == expected
    assert pod(render(global__imagePullSecrets=form, imagePullSecrets=["b"]))["spec"]["imagePullSecrets"] == expected
    assert settings(render(engine__imagePullSecrets=form)).image_pull_secrets == ("a", "b")
    assert "imagePullSecrets" not in pod(render())["spec"]


def test_names_can_be_replaced():
    objects = render(fullnameOverride="llm", nameOverride="inference", **ALL)
    names = {obj["metadata"]["name"].removeprefix("unmask-system:") for obj in objects}
    assert {name.partition(":")[0].removesuffix("-dashboard") for name in names} == {"llm"}
    selector = one(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert selector == {"app.kubernetes.io/name": "inference", "app.kubernetes.io/instance": "unmask-operator"}
    found = settings(objects)
    assert (found.lease_name, found.deployment, found.operator_selector) == ("llm", "llm", selector)
    (role,) = [obj for obj in objects if obj["kind"] == "Role"]
    assert [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule] == [["llm"], ["llm"]]
    assert one(render(nameOverride="inference"), "Deployment")["metadata"]["name"] == "unmask-operator-inference"


@pytest.mark.parametrize("name", ["123", "1e5", "true", "null", "2024-01-01"])
def test_names_that_yaml_reads_as_another_type_stay_text(name):
    values = {
        **REGISTRY, "fullnameOverride": "op", "nameOverride": "on", "priorityClassName": name, "runtimeClassName": name,
        "serviceAccount.name": name, "imagePullSecrets": [name], "engine.caConfigMap": name, "watchNamespaces": [name],
        "monitoring.dashboard.enabled": True,
    }  # fmt: skip
    options = ("--namespace", name, "--kube-version", "1.34.4")
    made = parse_objects(helm("template", name, str(CHART), *options, *sets(values)))
    selector = {"app.kubernetes.io/name": "on", "app.kubernetes.io/instance": name}
    for obj in made:
        assert obj["metadata"].get("namespace", name) == name
        assert obj["metadata"]["labels"].items() >= selector.items()
    spec = pod(made)["spec"]
    assert (spec["serviceAccountName"], spec["imagePullSecrets"]) == (name, [{"name": name}])
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == (name, name)
    assert spec["topologySpreadConstraints"][0]["labelSelector"] == {"matchLabels": selector}
    found = settings(made)
    assert (found.ca_config_map, found.watch_namespaces, found.operator_selector) == (name, (name,), selector)
    (subject,) = one([obj for obj in made if obj["kind"] == "ClusterRoleBinding"], "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": name, "namespace": name}


@pytest.mark.parametrize("release", ["my.release", "1st", "123"])
def test_a_release_without_a_valid_name_for_a_service_is_refused(release):
    """Helm accepts these names. Its installation would end at the Service, after the other objects."""
    options = (release, str(CHART), "--kube-version", "1.34.4")
    with pytest.raises(ValueError, match=f"fullnameOverride: is not set, and the name {release}-unmask-operator"):
        helm("template", *options, *sets(REGISTRY))
    assert helm("template", *options, *sets({**REGISTRY, "fullnameOverride": "llm"}))


def test_variables_of_engines_are_not_expanded_in_the_operators_pod():
    env = {"NO_PROXY": "$(KUBERNETES_SERVICE_HOST),.svc", "A": "$$(B)", "C": " x ", "D": "a\u2028b\x0b"}
    objects = render(engine__env=env)
    (variable,) = [e for e in container(objects)["env"] if e["name"] == "UNMASK_OPERATOR_ENGINE_ENV"]
    assert re.sub(r"\$\$", "", variable["value"]).count("$") == 0
    assert settings(objects).engine_env == env


def test_topology_spread_constraints_can_be_replaced_or_removed():
    zone = {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {"matchLabels": {"a": "b"}}
    objects = render(topologySpreadConstraints=[zone, {**zone, "labelSelector": own}])
    selector = one(objects, "Deployment")["spec"]["selector"]
    assert pod(objects)["spec"]["topologySpreadConstraints"] == [
        {**zone, "labelSelector": selector},
        {**zone, "labelSelector": own},
    ]
    assert "topologySpreadConstraints" not in pod(render(topologySpreadConstraints=[]))["spec"]


def test_pods_of_operator_and_engines_run_on_linux_nodes():
    assert pod(render())["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert settings(render()).engine_node_selector == {"kubernetes.io/os": "linux"}
    both = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"}
    assert settings(render(engine={"nodeSelector": both})).engine_node_selector == both
    assert settings(render(engine={"nodeSelector": {"kubernetes.io/os": None}})).engine_node_selector == {}
    assert "nodeSelector" not in pod(render(nodeSelector={"kubernetes.io/os": None}))["spec"]


@pytest.mark.parametrize("section", ["commonLabels", "podLabels"])
@pytest.mark.parametrize("key", RESERVED)
def test_labels_that_select_pods_or_extend_roles_are_refused(section, key):
    with pytest.raises(ValueError, match=f"{section}: {key} is set by the chart or by Kubernetes; remove it"):
        render(**{section: {key: "x"}})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"commonLabels": {"a": "b"}, "podLabels": {"a": "c"}}, "podLabels: a is also in commonLabels"),
        ({"commonAnnotations": {"helm.sh/hook": "pre-install"}}, "commonAnnotations: helm.sh/hook would prevent Helm"),
        ({"podAnnotations": {"meta.helm.sh/release-name": "x"}}, "podAnnotations: meta.helm.sh/release-name would"),
        ({"extraEnv": [{"name": "UNMASK_OPERATOR_PORT", "value": "1"}]}, "extraEnv: UNMASK_OPERATOR_PORT is a setting"),
        ({"extraEnv": [{"value": "1"}]}, "extraEnv"),
        ({"extraEnv": {"A": "b"}}, "extraEnv"),
        ({"commonLabels": {"a": "b c"}}, "commonLabels"),
        ({"commonLabels": {"a b": "c"}}, "commonLabels"),
        ({"commonLabels": {"a": True}}, "commonLabels"),
        ({"commonAnnotations": {"a": 1}}, "commonAnnotations"),
        ({"podLabels": {"a": "b" * 64}}, "podLabels"),
        ({"fullnameOverride": "a" * 51}, "fullnameOverride"),
        ({"fullnameOverride": "A_b"}, "fullnameOverride"),
        ({"nameOverride": "a/b"}, "nameOverride"),
        ({"global__imageRegistry": "https://registry.example"}, "/global/imageRegistry"),
        ({"image__repository": "team/unmask-operator:1.0"}, "/image/repository"),
        ({"image__repository": "https://registry.example/unmask-operator"}, "/image/repository"),
        ({"engine__image__repository": "host:5000/unmask-runtime:1.0"}, "/engine/image/repository"),
        ({"imagePullSecrets": [{"names": "a"}]}, "imagePullSecrets"),
        ({"imagePullSecrets": ["A_b"]}, "imagePullSecrets"),
        ({"engine__imagePullSecrets": [1]}, "imagePullSecrets"),
        ({"engine__nodeSelector": {"a": True}}, "nodeSelector"),
        ({"topologySpreadConstraints": [{"topologyKey": "a"}]}, "topologySpreadConstraints"),
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused_with_their_name(values, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        render(**values)


def test_a_reserved_label_of_the_crd_is_refused():
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


def nulls(value, path=""):
    """Yields the paths of nulls in a rendered object."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from nulls(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from nulls(inner, f"{path}[]")
    elif value is None:
        yield path


# Required values, with the error message without them.
NEEDED = {
    "global.imageRegistry": "has no registry; set global.imageRegistry",
    "global": "has no registry; set global.imageRegistry",
    "image": "image.repository: is not set",
    "image.repository": "image.repository: is not set",
    "engine": "engine.image.repository: is not set",
    "engine.image": "engine.image.repository: is not set",
    "engine.image.repository": "engine.image.repository: is not set",
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
    assert [found for obj in objects for found in nulls(obj)] == []
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    assert "<nil>" not in json.dumps(objects)
    settings(objects)


@pytest.mark.parametrize("path", keys(CRDS))
def test_a_null_value_of_the_crds_chart_means_none(path):
    assert render_crds(**{path: None}) == render_crds()


def test_a_release_without_the_newer_values_keeps_the_restricted_contexts():
    """Checks `helm upgrade --reuse-values`, which has none of the later values."""
    later = ("podSecurityContext", "securityContext", "topologySpreadConstraints", "podLabels", "commonLabels")
    assert pod(render(**dict.fromkeys(later))) == pod(render())


def test_every_value_has_a_property_in_the_schema():
    for chart in (CHART, CRDS):
        schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
        values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
        assert values.keys() <= schema["properties"].keys()


def test_nulls_for_all_members_leave_an_empty_map() -> None:
    objects = render(
        podSecurityContext={"runAsNonRoot": None, "seccompProfile": None},
        securityContext={"allowPrivilegeEscalation": None, "readOnlyRootFilesystem": None, "capabilities": None},
        monitoring__dashboard={"enabled": True, "labels": {"grafana_dashboard": None}},
    )
    spec = one(objects, "Deployment")["spec"]["template"]["spec"]
    assert (spec["securityContext"], spec["containers"][0]["securityContext"]) == ({}, {})
    assert "grafana_dashboard" not in one(objects, "ConfigMap")["metadata"]["labels"]

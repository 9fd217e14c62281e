"""Tests of the rendered chart: its objects, rejected values, and agreement with the operator's settings."""

import json

import pytest
import yaml

from tests.operator.helm import CHART, CHARTS, CRDS, helm, render, render_crds
from tools.permissions import ADOPTION_RULES, NODE_RULE, RULES, missing, unused
from unmask_operator.settings import VERSION, Settings, read_settings

pytestmark = pytest.mark.programs
DIGEST = "sha256:" + "0" * 64
NAME = "unmask-operator"
PEERS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
TOLERATIONS = [
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "pool", "value": 'a"<b>', "effect": "NoExecute", "tolerationSeconds": 3000000},
]
ALL = {
    "networkPolicy__metricsFrom": PEERS,
    "monitoring__serviceMonitor__enabled": True,
    "monitoring__prometheusRule__enabled": True,
    "monitoring__dashboard__enabled": True,
}


def named(objects):
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


def one(objects, kind):
    (found,) = (o for o in objects if o["kind"] == kind)
    return found


def container(objects):
    (found,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return found


def settings(objects):
    env = {e["name"]: e.get("value", e["name"].lower()) for e in container(objects)["env"]}
    return read_settings({name: value.replace("$$", "$") for name, value in env.items()})  # as the kubelet expands it


def test_lint_finds_nothing():
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), str(CRDS))


def test_the_objects_of_a_default_release():
    cluster = "unmask-system:unmask-operator"
    assert set(named(render())) == {
        *(("ClusterRole", cluster + part) for part in ("", ":nodes", ":view", ":edit", ":admin")),
        *(("ClusterRoleBinding", cluster + part) for part in ("", ":nodes")),
        *((kind, NAME) for kind in ("Role", "RoleBinding", "ServiceAccount", "Deployment", "Service")),
        ("PodDisruptionBudget", NAME),
        ("NetworkPolicy", NAME),
    }


def test_every_object_has_labels_and_none_is_retained():
    for obj in render(**ALL):
        labels, annotations = obj["metadata"]["labels"], obj["metadata"].get("annotations", {})
        assert labels["app.kubernetes.io/name"] == labels["app.kubernetes.io/instance"] == NAME
        assert "helm.sh/resource-policy" not in annotations
        assert "helm.sh/hook" not in annotations


def test_the_crd_is_the_generated_one_in_a_chart_of_its_own():
    """Checks this because `helm rollback` of the operator must not affect the CRD."""
    (file,) = (CHARTS.parent / "crds").glob("*.yaml")
    expected = yaml.safe_load(file.read_text(encoding="utf-8"))
    (found,) = render_crds(annotations={"a/b": "c"})
    assert (found["kind"], found["metadata"]["name"]) == ("CustomResourceDefinition", expected["metadata"]["name"])
    assert found["spec"] == expected["spec"]
    assert found["metadata"]["annotations"] == {
        "a/b": "c",
        "helm.sh/resource-policy": "keep",
        "serving.unmask.dev/crds-version": VERSION,
    }
    assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == "unmask-crds"
    assert "CustomResourceDefinition" not in {o["kind"] for o in render()}


def test_the_charts_have_the_same_version():
    for chart in (CHART, CRDS):
        about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
        assert (about["version"], about["appVersion"]) == (VERSION, VERSION)


def test_the_pod_passes_the_restricted_level():
    objects = render()
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["enableServiceLinks"] is False
    assert one(objects, "Deployment")["spec"]["replicas"] == 2


def test_the_operator_reads_every_setting_of_the_deployment():
    objects = render()
    assert settings(objects) == Settings(
        runtime_image=f"registry.example/team/unmask-runtime:{VERSION}",
        namespace="unmask_operator_namespace",
        pod_name="unmask_operator_pod_name",
        deployment=one(objects, "Deployment")["metadata"]["name"],
        read_nodes=True,
        operator_selector=one(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        log_format="json",
    )
    assert container(objects)["ports"] == [{"name": "http", "containerPort": Settings().port}]
    by_reference = {e["name"]: e["valueFrom"] for e in container(objects)["env"] if "valueFrom" in e}
    assert by_reference == {
        "UNMASK_OPERATOR_NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
        "UNMASK_OPERATOR_POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
    }


def test_values_become_settings():
    env = {"NO_PROXY": "10.0.0.0/8,.svc", "HF_ENDPOINT": "http://hub/?a=b c"}
    found = settings(
        render(
            watchNamespaces=["a", "b"],
            watchSelector="track!=canary,team",
            engine={
                "env": env,
                "imagePullSecrets": ["one", "two"],
                "caConfigMap": "roots",
                "image": {"digest": DIGEST},
            },
            global__imageRegistry="host:5000/team/",
            rbac__readNodes=False,
            log__level="debug",
            gpuEngines={"tolerations": TOLERATIONS, "nodeSelector": {"example.com/pool": "gpu", "zone": ""}},
        )
    )
    assert found.gpu_tolerations == TOLERATIONS
    assert found.gpu_node_selector == {"example.com/pool": "gpu", "zone": ""}
    assert found.watch_namespaces == ("a", "b")
    assert found.watch_selector == ("track!=canary", "team")
    assert found.engine_env == env
    assert found.image_pull_secrets == ("one", "two")
    assert found.ca_config_map == "roots"
    assert found.runtime_image == f"host:5000/team/unmask-runtime:{VERSION}@{DIGEST}"
    assert found.runtime_is_own_version
    assert found.read_nodes is False
    assert found.log_level == "debug"
    assert found.lease_name == NAME


@pytest.mark.parametrize("namespaces", [[], ["a", "b"]])
def test_the_granted_permissions_are_those_that_the_operator_needs(namespaces):
    scopes = {"watched": [], "own": [], "cluster": []}
    for role in render(rbac__aggregate=False, watchNamespaces=namespaces):
        if role["kind"] not in ("Role", "ClusterRole"):
            continue
        namespace = role["metadata"].get("namespace")
        assert (role["kind"] == "ClusterRole") == (namespace is None)
        everywhere = not namespaces and role["metadata"]["name"] == f"unmask-system:{NAME}"
        watched = everywhere or namespace in namespaces
        scopes["watched" if watched else "own" if namespace else "cluster"].append(role["rules"])
    assert len(scopes["watched"]) == (len(namespaces) or 1)
    for rules in scopes["watched"]:
        expected = [rule for rule in RULES if rule.scope == "watched"]
        assert missing(rules, expected) == unused(rules, expected) == []
    (own,), expected = scopes["own"], [rule for rule in RULES if rule.scope == "own"]
    assert missing(own, expected) == unused(own, expected) == []
    everything_but_creating = [rule for rule in own if rule["verbs"] != ["create"]]
    assert {tuple(rule["resourceNames"]) for rule in everything_but_creating} == {(NAME,)}
    (nodes,) = scopes["cluster"]
    assert missing(nodes, [NODE_RULE]) == unused(nodes, [NODE_RULE]) == []


@pytest.mark.parametrize("namespaces", [[], ["a"]])
def test_the_permissions_for_adoption_are_granted_only_on_request(namespaces):
    name = f"{NAME}-engines" if namespaces else f"unmask-system:{NAME}"
    (role,) = [
        obj
        for obj in render(rbac__adoption=True, watchNamespaces=namespaces)
        if obj["kind"] in ("Role", "ClusterRole") and obj["metadata"]["name"] == name
    ]
    expected = [*(rule for rule in RULES if rule.scope == "watched"), *ADOPTION_RULES]
    assert missing(role["rules"], expected) == unused(role["rules"], expected) == []


def test_every_binding_binds_its_role_to_the_service_account():
    listed = render(watchNamespaces=["a"], serviceAccount={"create": False, "name": "mine"})
    objects, bindings = named(listed), [o for o in listed if o["kind"].endswith("Binding")]
    assert len(bindings) == 3
    for binding in bindings:
        role = objects[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        assert binding["metadata"].get("namespace") == role["metadata"].get("namespace")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "mine", "namespace": "unmask-system"}]
    assert "ServiceAccount" not in {o["kind"] for o in listed}
    assert one(listed, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_a_namespaced_operator_can_do_without_cluster_roles():
    kinds = {o["kind"] for o in render(watchNamespaces=["a"], rbac__readNodes=False, rbac__aggregate=False)}
    assert "Role" in kinds
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}
    assert not [o for o in render(rbac__create=False, rbac__aggregate=False) if "Role" in o["kind"]]


@pytest.mark.parametrize("user", ["view", "edit", "admin"])
def test_users_roles_are_extended(user):
    role = named(render())["ClusterRole", f"unmask-system:{NAME}:{user}"]
    assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{user}"] == "true"
    verbs = {resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}
    assert ("create" in verbs["diffusionlmservices"]) == (user != "view")
    assert ("patch" in verbs["diffusionlmservices/scale"]) == (user != "view")
    assert verbs["diffusionlmservices/status"] == {"get"}


def test_image_references_combine_registry_repository_tag_and_digest():
    assert container(render())["image"] == f"registry.example/team/unmask-operator:{VERSION}"
    pinned = render(global__imageRegistry="localhost/a", image__tag="x", image__digest=DIGEST)
    assert container(pinned)["image"] == f"localhost/a/unmask-operator:x@{DIGEST}"


@pytest.mark.parametrize("registry", ["", "team", "host/a"])
def test_an_image_without_a_registry_is_refused_with_what_to_set(registry):
    """Checks this because nodes would otherwise pull the image from a registry of their own choice."""
    message = r"unmask-\w+: has no registry; set global\.imageRegistry to the registry host"
    with pytest.raises(ValueError, match=message):
        render(global__imageRegistry=registry)
    named = {"image__repository": "host:5000/operator", "engine__image__repository": "ghcr.example/runtime"}
    assert container(render(global__imageRegistry="", **named))["image"] == f"host:5000/operator:{VERSION}"
    with pytest.raises(ValueError, match="image unmask-runtime: has no registry"):
        render(global__imageRegistry="", image__repository="host:5000/operator")


def test_one_replica_has_no_disruption_budget():
    assert "PodDisruptionBudget" not in {o["kind"] for o in render(replicas=1)}


def test_only_peers_in_the_values_can_reach_the_operators_metrics():
    objects = render()
    policy = one(objects, "NetworkPolicy")["spec"]
    assert policy["ingress"] == []
    assert policy["policyTypes"] == ["Ingress"]
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    peers = [*PEERS, {"podSelector": {"matchLabels": {"a": "b"}}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
    named = one(render(networkPolicy={"metricsFrom": peers}), "NetworkPolicy")["spec"]
    assert named["ingress"] == [{"ports": [{"port": "http"}], "from": peers}]
    assert "NetworkPolicy" not in {o["kind"] for o in render(networkPolicy__enabled=False)}


def test_a_service_monitor_that_the_network_policy_blocks_is_rejected():
    with pytest.raises(ValueError, match=r"networkPolicy\.metricsFrom: is empty"):
        render(monitoring__serviceMonitor__enabled=True)
    for more in ({"networkPolicy__enabled": False}, {"networkPolicy__metricsFrom": PEERS}):
        assert "ServiceMonitor" in {o["kind"] for o in render(monitoring__serviceMonitor__enabled=True, **more)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replica": 2}, "replica"),
        (
            {"image__tag": "latest"},
            r"image\.tag: latest is not supported, because .*; set the version that",
        ),
        ({"engine__image__tag": "latest"}, r"engine\.image\.tag: latest is not supported"),
        ({"image__digest": "sha256:12"}, "digest"),
        ({"watchNamespaces": ["Bad_Name"]}, "watchNamespaces"),
        ({"watchSelector": "track = canary"}, "watchSelector"),
        ({"watchSelector": "track in (canary)"}, "watchSelector"),
        ({"watchSelector": "!a=b"}, "watchSelector"),
        ({"engine__env": {"A": 1}}, "env"),
        ({"engine__env": {"A": "x\ny"}}, "env"),
        ({"log__level": "loud"}, "level"),
        ({"crds__enabled": True}, r"crds: this value was removed, because the chart unmask-crds contains.*crds=null"),
        ({"crds__enabled": False}, r"install that chart \(docs/operations/install.md, Upgrade\)"),
        ({"gpuEngines__tolerations": [{"key": "a", "operator": "Is"}]}, "tolerations"),
        ({"gpuEngines__tolerations": [{"value": "a"}]}, "tolerations"),
        ({"gpuEngines__tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations"),
        ({"gpuEngines__tolerations": [{"key": "a", "tolerationSeconds": 5}]}, "tolerations"),
        ({"gpuEngines__tolerations": [{"key": "a", "effects": "NoSchedule"}]}, "tolerations"),
        ({"gpuEngines__nodeSelector": {"a b": "c"}}, "nodeSelector"),
        ({"gpuEngines__nodeSelector": {"a": "b c"}}, "nodeSelector"),
        ({"gpuEngines__nodeSelector": {"a": True}}, "nodeSelector"),
        ({"gpuEngines__affinity": {}}, "affinity"),
        ({"networkPolicy__metricsFrom": [{}]}, "metricsFrom"),  # would allow every peer
        ({"networkPolicy__metricsFrom": [{"podselector": {}}]}, "metricsFrom"),
        ({"networkPolicy__metricsFrom": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}, "metricsFrom"),
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused_by_name(values, message):
    with pytest.raises(ValueError, match=message):
        render(**values)


def test_the_value_crds_of_earlier_charts_can_be_removed():
    assert render(crds=None) == render()


@pytest.mark.parametrize("section", ["gpuEngines", "service"])
def test_sections_that_the_values_of_an_earlier_release_lack_are_optional(section):
    """Checks `helm upgrade --reuse-values`. It uses the earlier chart's values without the defaults of this one."""
    assert render(**{section: None}) == render()


def test_an_older_cluster_is_refused():
    with pytest.raises(ValueError, match=r"1\.30"):
        render("1.29.9")

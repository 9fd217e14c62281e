"""Tests of the rendered charts: their objects, permissions and monitoring, and the settings of the operator."""

import json
import re

import pytest
import yaml
from prometheus_client import generate_latest

from runtime.server.metrics import Metrics as EngineMetrics
from runtime.server.metrics import RequestMetrics
from tests.operator.chart_samples import ALL, DIGEST, PEERS, TOLERATIONS, container, one, settings
from tests.operator.helm import CHART, CHARTS, CRDS, render, render_crds
from tools.permissions import (
    ADOPTION_RULES,
    CLAIM_ADOPTION_RULE,
    LWS_ADOPTION_RULE,
    MODEL_CACHE_RULES,
    NODE_RULE,
    RULES,
    VALUE_RULES,
    missing,
    unused,
)
from unmask_operator.activator.metrics import Metrics as ActivatorMetrics
from unmask_operator.kube.cache import Cache
from unmask_operator.metrics import Metrics as OperatorMetrics
from unmask_operator.settings import VERSION, Settings
from unmask_operator.status.transitions import EXPECTED_REASONS

pytestmark = pytest.mark.programs
NAME = "unmask-operator"


def named(objects):
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


def kinds(**values):
    return {obj["kind"] for obj in render(**values)}


def test_the_objects_of_a_default_release():
    cluster = "unmask-system:unmask-operator"
    objects = named(render())
    assert set(objects) == {
        *(("ClusterRole", cluster + part) for part in ("", ":nodes", ":view", ":edit", ":admin")),
        *(("ClusterRoleBinding", cluster + part) for part in ("", ":nodes")),
        *((kind, NAME) for kind in ("Role", "RoleBinding", "ServiceAccount", "Deployment", "Service")),
        *((kind, NAME) for kind in ("PodDisruptionBudget", "NetworkPolicy")),
    }
    deployment = objects["Deployment", NAME]["spec"]
    pod = deployment["template"]["spec"]
    assert (deployment["replicas"], pod["enableServiceLinks"]) == (2, False)
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "PodDisruptionBudget" not in kinds(replicas=1)


def test_the_crd_is_the_generated_one_in_a_chart_of_its_own():
    """`helm rollback` of the operator must not affect the CRD."""
    (file,) = (CHARTS.parent / "crds").glob("*.yaml")
    expected = yaml.safe_load(file.read_text(encoding="utf-8"))
    (found,) = render_crds(annotations={"a/b": "c"})
    assert (found["kind"], found["metadata"]["name"]) == ("CustomResourceDefinition", expected["metadata"]["name"])
    assert found["spec"] == expected["spec"]
    marks = {"helm.sh/resource-policy": "keep", "serving.unmask.dev/crds-version": VERSION}
    assert found["metadata"]["annotations"] == {"a/b": "c", **marks}
    assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == "unmask-crds"
    for chart in (CHART, CRDS):
        about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
        assert (about["version"], about["appVersion"]) == (VERSION, VERSION)


def test_the_operator_reads_every_setting_of_the_deployment():
    objects = render()
    deployment = one(objects, "Deployment")
    assert settings(objects) == Settings(
        runtime_image=f"registry.example/team/unmask-runtime:{VERSION}", namespace="unmask_operator_namespace",
        pod_name="unmask_operator_pod_name", deployment=deployment["metadata"]["name"], read_nodes=True,
        operator_selector=deployment["spec"]["selector"]["matchLabels"], log_format="json",
    )  # fmt: skip
    assert container(objects)["ports"] == [{"name": "http", "containerPort": Settings().port}]
    by_reference = {e["name"]: e["valueFrom"] for e in container(objects)["env"] if "valueFrom" in e}
    assert by_reference == {
        "UNMASK_OPERATOR_NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
        "UNMASK_OPERATOR_POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
    }


def test_values_become_settings():
    env = {"NO_PROXY": "$(KUBERNETES_SERVICE_HOST),.svc", "A": "$$(B)", "C": " x ", "D": "a\u2028b\x0b", "E": "?a=b c"}
    engine = {"env": env, "caConfigMap": "roots", "image": {"digest": DIGEST}}
    pool = {"example.com/pool": "gpu", "zone": ""}
    objects = render(
        watchNamespaces=["a", "b"], watchSelector="track!=canary,team", engine=engine,
        global__imageRegistry="host:5000/team/", rbac__readNodes=False, log__level="debug",
        gpuEngines={"tolerations": TOLERATIONS, "nodeSelector": pool},
    )  # fmt: skip
    found = settings(objects)
    assert found.runtime_is_own_version
    expected = {
        "gpu_tolerations": TOLERATIONS, "gpu_node_selector": pool, "engine_env": env, "ca_config_map": "roots",
        "watch_namespaces": ("a", "b"), "watch_selector": ("track!=canary", "team"), "read_nodes": False,
        "log_level": "debug", "runtime_image": f"host:5000/team/unmask-runtime:{VERSION}@{DIGEST}",
    }  # fmt: skip
    assert {name: getattr(found, name) for name in expected} == expected
    (variable,) = [e["value"] for e in container(objects)["env"] if e["name"] == "UNMASK_OPERATOR_ENGINE_ENV"]
    assert "$" not in variable.replace("$$", ""), "the kubelet would expand a variable in the operator's pod"


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
    for scope, roles in scopes.items():
        expected = [NODE_RULE] if scope == "cluster" else [rule for rule in RULES if rule.scope == scope]
        assert [(missing(rules, expected), unused(rules, expected)) for rules in roles] == [([], [])] * len(roles)
    (own,) = scopes["own"]
    assert {tuple(rule["resourceNames"]) for rule in own if rule["verbs"] != ["create"]} == {(NAME,)}
    assert len(scopes["cluster"]) == 1


@pytest.mark.parametrize("namespaces", [[], ["a"]])
@pytest.mark.parametrize(
    ("value", "further"),
    [
        ("rbac__adoption", ADOPTION_RULES),
        *((f"{name}__enabled", VALUE_RULES[name]) for name in VALUE_RULES if name != "activator"),
    ],
)
def test_further_permissions_are_granted_only_with_their_value(value, further, namespaces):
    role = ("Role", f"{NAME}-engines") if namespaces else ("ClusterRole", f"unmask-system:{NAME}")
    objects = render(**{value: True, "watchNamespaces": namespaces})
    rules, expected = named(objects)[role]["rules"], [*(rule for rule in RULES if rule.scope == "watched"), *further]
    assert missing(rules, expected) == unused(rules, expected) == []
    for name in ("keda", "dra", "lws", "gateway"):
        assert getattr(settings(objects), name) == (value == f"{name}__enabled")


@pytest.mark.parametrize("adoption", [False, True])
@pytest.mark.parametrize("namespaces", [[], ["a"]])
@pytest.mark.parametrize(
    ("value", "setting", "further", "to_adopt"),
    [
        ("modelCache", "model_cache", MODEL_CACHE_RULES, CLAIM_ADOPTION_RULE),
        ("lws", "lws", VALUE_RULES["lws"], LWS_ADOPTION_RULE),
    ],
)
def test_permissions_on_kept_kinds_are_granted_only_on_request(value, setting, further, to_adopt, namespaces, adoption):
    role = ("Role", f"{NAME}-engines") if namespaces else ("ClusterRole", f"unmask-system:{NAME}")
    objects = render(**{f"{value}__enabled": True}, rbac__adoption=adoption, watchNamespaces=namespaces)
    expected = [*(rule for rule in RULES if rule.scope == "watched"), *further]
    expected += [*ADOPTION_RULES, to_adopt] if adoption else []
    rules = named(objects)[role]["rules"]
    assert missing(rules, expected) == unused(rules, expected) == []
    assert getattr(settings(objects), setting)
    assert not getattr(settings(render()), setting)


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
    namespaced = kinds(watchNamespaces=["a"], rbac__readNodes=False, rbac__aggregate=False)
    assert "Role" in namespaced
    assert not namespaced & {"ClusterRole", "ClusterRoleBinding"}
    assert not [kind for kind in kinds(rbac__create=False, rbac__aggregate=False) if "Role" in kind]


def test_users_roles_are_extended():
    objects = named(render())
    for user in ("view", "edit", "admin"):
        role = objects["ClusterRole", f"unmask-system:{NAME}:{user}"]
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{user}"] == "true"
        verbs = {resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}
        assert ("create" in verbs["diffusionlmservices"]) == (user != "view")
        assert ("patch" in verbs["diffusionlmservices/scale"]) == (user != "view")
        assert verbs["diffusionlmservices/status"] == {"get"}


def test_only_peers_in_the_values_can_reach_the_operators_metrics():
    objects = render()
    policy = one(objects, "NetworkPolicy")["spec"]
    assert (policy["ingress"], policy["policyTypes"]) == ([], ["Ingress"])
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    peers = [*PEERS, {"podSelector": {"matchLabels": {"a": "b"}}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
    spec = one(render(networkPolicy={"metricsFrom": peers}), "NetworkPolicy")["spec"]
    assert spec["ingress"] == [{"ports": [{"port": "http"}], "from": peers}]
    assert kinds(networkPolicy__enabled=False, monitoring__serviceMonitor__enabled=True) & {
        "NetworkPolicy",
        "ServiceMonitor",
    } == {"ServiceMonitor"}


def existing_metrics():
    operator = generate_latest(OperatorMetrics(Cache(), lambda: 0).registry).decode()
    activator = generate_latest(ActivatorMetrics().registry).decode()
    text = operator + activator + EngineMetrics("m", RequestMetrics()).text().decode()
    histograms = re.findall(r"^# TYPE (\w+) histogram", text, re.MULTILINE)
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return parts | set(re.findall(r"^(?:# TYPE )?(unmask_\w+)", text, re.MULTILINE))


def test_the_dashboard_and_the_alerts_use_existing_metrics():
    objects = render(**ALL)
    panels = json.loads(one(objects, "ConfigMap")["data"]["unmask.json"])["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    groups = one(objects, "PrometheusRule")["spec"]["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert len(alerts) == sum(len(group["rules"]) for group in groups)
    assert {alert["labels"]["severity"] for alert in alerts.values()} <= {"warning", "critical"}
    existing = existing_metrics()
    for query in (*queries, *(alert["expr"] for alert in alerts.values())):
        names = set(re.findall(r"\bunmask_\w+", query))
        assert names, query
        assert names <= existing, query
    for name in ("UnmaskServiceUnavailable", "UnmaskServiceNotReady"):
        assert "by (namespace, name)" in alerts[name]["expr"]
        assert "unless on (namespace, name) unmask_operator_service_stopped == 1" in alerts[name]["expr"]
        assert "{{ $labels.namespace }}/{{ $labels.name }}" in alerts[name]["annotations"]["summary"]
    unreported = re.findall(r'reason!~"([^"]+)"', alerts["UnmaskModelNotCached"]["expr"])[0].split("|")
    assert {*unreported} <= EXPECTED_REASONS, "a failed download is reported"
    endpoints = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert [endpoint["honorLabels"] for endpoint in endpoints] == [True]  # metrics name a namespace themselves

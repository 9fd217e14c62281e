"""Tests of rendering, rule by rule. Complete objects are in snapshots/ (test_snapshots.py)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import config
from tests.operator.samples import SETTINGS, child, container, kinds, make, observe, resource, template
from unmask_operator.api import SpecError, parse
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.render.labels import url
from unmask_operator.render.pod import render_pod
from unmask_operator.render.workload import deployment, startup_budget

GPU = {"gpu": {}, "parallelism": {"data": 2}}
KEYS = {"auth": {"apiKeySecretRef": {"name": "keys", "key": "api"}}}
HPA = {"provider": "HPA", "minReplicas": 1, "maxReplicas": 4}


def made(settings: Any = SETTINGS, **spec: Any) -> Any:
    return make(observe(resource(**spec)), settings)


def env(plan: Any) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container(plan)["env"]}


def volumes(plan: Any) -> dict[str, Any]:
    return {v["name"]: v for v in template(plan)["spec"]["volumes"]}


def mounts(plan: Any) -> dict[str, Any]:
    return {m["mountPath"]: m for m in container(plan)["volumeMounts"]}


@pytest.mark.parametrize("spec", [{}, GPU, {"model": {"uri": "pvc://models/a"}}, KEYS])
def test_pods_pass_restricted_pod_security(spec: dict[str, Any]) -> None:
    pod = template(made(replace(SETTINGS, ca_config_map="trust"), **spec))["spec"]
    assert len(pod["initContainers"]) == 1
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    assert all(volume.keys() - {"name"} <= allowed for volume in pod["volumes"])
    for each in (*pod["containers"], *pod.get("initContainers", ())):
        context = each["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert not any("hostPort" in port for port in each.get("ports", ()))


def test_every_mount_has_its_volume_and_every_writable_path_is_a_mount() -> None:
    plan = made(replace(SETTINGS, ca_config_map="trust"), model={"uri": "pvc://models/a"}, **KEYS)
    (before,) = template(plan)["spec"]["initContainers"]
    assert {m["name"] for m in (*mounts(plan).values(), *before["volumeMounts"])} == set(volumes(plan))
    writable = {path for path, mount in mounts(plan).items() if not mount.get("readOnly")}
    for name in ("HOME", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"):
        assert any(f"{env(plan)[name]}/".startswith(f"{path}/") for path in writable), name


def test_sizes_reach_their_volumes() -> None:
    plan = made(sharedMemorySize="8Gi", modelCache={"emptyDir": {"sizeLimit": "300Gi"}})
    assert volumes(plan)["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert volumes(plan)["model-cache"]["emptyDir"] == {"sizeLimit": "300Gi"}


def test_a_cache_with_a_size_requests_that_much_disk() -> None:
    sized = {"modelCache": {"emptyDir": {"sizeLimit": "300Gi"}}}
    assert container(made(**sized))["resources"] == {"requests": {"ephemeral-storage": "300Gi"}}
    for own in ({"requests": {"ephemeral-storage": "1Gi"}}, {"limits": {"ephemeral-storage": "1Gi"}}):
        assert container(made(**sized, resources=own))["resources"] == own
    assert container(made(modelCache={"emptyDir": {}}))["resources"] == {}
    for default in ({}, {"modelCache": {"emptyDir": {"sizeLimit": "100Gi"}}}):  # older schemas stored the latter
        assert volumes(made(**default))["model-cache"]["emptyDir"] == {"sizeLimit": "100Gi"}
        assert container(made(**default))["resources"] == {}


def test_a_model_on_a_claim_is_mounted_at_the_path_in_the_arguments() -> None:
    plan = made(model={"uri": "pvc://models/llada/2"})
    assert volumes(plan)["model"]["persistentVolumeClaim"] == {"claimName": "models"}
    assert mounts(plan)["/mnt/model"] == {"name": "model", "mountPath": "/mnt/model", "readOnly": True}
    assert "--model=/mnt/model/llada/2" in container(plan)["args"]


def test_secrets_are_named_and_never_read() -> None:
    plan = made(
        model={"uri": "hf://org/private", "tokenSecretRef": {"name": "hub", "key": "token"}},
    )
    assert env(plan)["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert "HF_TOKEN" not in env(made())


def test_keys_are_a_file_that_follows_the_secret() -> None:
    """Checks that there is neither a variable nor a subPath, because these keep their value from the pod's start."""
    plan = made(**KEYS)
    assert "UNMASK_API_KEY" not in env(plan)
    assert volumes(plan)["api-keys"]["secret"] == {"secretName": "keys", "items": [{"key": "api", "path": "keys"}]}
    assert mounts(plan)["/etc/unmask/keys"] == {"name": "api-keys", "mountPath": "/etc/unmask/keys", "readOnly": True}
    assert "--api-key-file=/etc/unmask/keys/keys" in container(plan)["args"]
    assert "api-keys" not in volumes(made())


def test_the_charts_variables_and_secrets_reach_the_engine() -> None:
    settings = replace(
        SETTINGS, engine_env={"HTTPS_PROXY": "http://p:3128", "HOME": "/root"}, image_pull_secrets=("a", "b")
    )
    plan = made(settings, imagePullSecrets=[{"name": "b"}, {"name": "c"}])
    assert env(plan)["HTTPS_PROXY"] == "http://p:3128"
    assert env(plan)["HOME"] == "/tmp", "HOME must be /tmp, because the root file system is read-only"
    assert template(plan)["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}, {"name": "c"}]


def test_no_variable_occurs_twice() -> None:
    """Checks this because server-side apply rejects a list with two entries of one name."""
    chart = {"OMP_NUM_THREADS": "4", "HF_TOKEN": "chart", "MODEL_REVISION": "chart", "HF_ENDPOINT": "http://hub"}
    token = {"name": "hub", "key": "token"}
    plan = made(replace(SETTINGS, engine_env=chart), model={"uri": "hf://a/b", "tokenSecretRef": token})
    names = [entry["name"] for entry in container(plan)["env"]]
    assert len(names) == len(set(names))
    assert env(plan)["OMP_NUM_THREADS"] == "4"
    assert env(plan)["HF_TOKEN"] == {"secretKeyRef": token}
    assert "configMapKeyRef" in env(plan)["MODEL_REVISION"]


def test_threads_follow_the_cpu_limit() -> None:
    assert env(made())["OMP_NUM_THREADS"] == {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}}


def test_engines_listen_on_both_address_families_by_a_variable_of_the_image() -> None:
    assert not [argument for argument in container(made())["args"] if argument.startswith("--host")]
    assert not [name for name in env(made()) if name.endswith("_HOST")]
    dockerfile = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")
    runtime = dockerfile.split("AS runtime\n")[1]
    name, host = re.findall(r"^ENV (UNMASK_DEFAULT_HOST)=(\S+)$", runtime, re.MULTILINE)[0]
    assert config.parse([], {name: host}).host == "::"


def test_an_older_image_listens_on_both_address_families_by_a_variable() -> None:
    main = {"name": "main", "env": [{"name": "UNMASK_HOST", "value": "::"}]}
    variables = container(made(podTemplate={"spec": {"containers": [main]}}))["env"]
    assert {"name": "UNMASK_HOST", "value": "::"} in variables


def test_gpus_are_a_limit_of_the_container() -> None:
    resources = {"limits": {"cpu": 4, "memory": "8Gi"}, "requests": {"cpu": "1"}}
    assert container(made(**GPU, resources=resources))["resources"] == {
        "limits": {"cpu": 4, "memory": "8Gi", "nvidia.com/gpu": 2},
        "requests": {"cpu": "1"},
    }
    assert container(made(gpu={"resourceName": "amd.com/gpu"}))["resources"] == {"limits": {"amd.com/gpu": 1}}
    assert container(made())["resources"] == {}


def test_probes_and_the_progress_deadline() -> None:
    plan = made(startupProbe={"periodSeconds": 2, "failureThreshold": 50}, livenessProbe={"timeoutSeconds": 9})
    assert container(plan)["startupProbe"] == {
        "httpGet": {"path": "/startup", "port": "http"},
        "periodSeconds": 2,
        "timeoutSeconds": 5,
        "failureThreshold": 50,
    }
    assert container(plan)["livenessProbe"]["timeoutSeconds"] == 9
    assert container(plan)["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert child(plan, "Deployment")["spec"]["progressDeadlineSeconds"] == 700
    assert child(made(), "Deployment")["spec"]["progressDeadlineSeconds"] == 3600 + 600
    endless = {"containers": [{"name": "main", "startupProbe": {"failureThreshold": 2**31 - 1}}]}
    assert child(made(podTemplate={"spec": endless}), "Deployment")["spec"]["progressDeadlineSeconds"] == 2**31 - 1


@pytest.mark.parametrize(
    ("probe", "seconds"),
    [({"initialDelaySeconds": 7}, 3607), ({"periodSeconds": 1}, 720), ({"periodSeconds": None}, 7200), (None, 0)],
)
def test_the_startup_budget_follows_the_pod_template(probe: Any, seconds: int) -> None:
    patch = {"spec": {"containers": [{"name": "main", "startupProbe": probe}]}}
    assert startup_budget(template(made(podTemplate=patch))) == seconds


def test_the_grace_period_covers_delay_and_drain() -> None:
    assert template(made(drainTimeoutSeconds=100))["spec"]["terminationGracePeriodSeconds"] == 120
    slow = made(drainTimeoutSeconds=100, drainDelaySeconds=300)
    assert template(slow)["spec"]["terminationGracePeriodSeconds"] == 410
    assert "--drain-delay=300" in container(slow)["args"]
    assert template(made(drainDelaySeconds=0))["spec"]["terminationGracePeriodSeconds"] == 70


def test_rollouts_and_the_selector() -> None:
    plan = made(rolloutStrategy={"maxSurge": 0, "maxUnavailable": "25%"})
    spec = child(plan, "Deployment")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "25%"}
    assert spec["selector"] == {"matchLabels": {"serving.unmask.dev/service": "demo"}}
    assert child(plan, "Service")["spec"]["selector"] == {"serving.unmask.dev/service": "demo"}
    assert template(plan)["metadata"]["labels"].items() >= {"serving.unmask.dev/service": "demo"}.items()


def test_the_service_and_its_url() -> None:
    expected = {"type": "NodePort", "port": 8080, "annotations": {"a": "b"}}
    service = child(made(service=expected), "Service")
    assert service["spec"]["type"] == "NodePort"
    assert [(p["name"], p["port"], p["targetPort"]) for p in service["spec"]["ports"]] == [("http", 8080, "http")]
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert url("demo", "team") == "http://demo.team.svc/v1"
    assert url("demo", "team", 8080) == "http://demo.team.svc:8080/v1"


def test_the_load_balancers_class_and_source_ranges() -> None:
    expected = {"type": "LoadBalancer", "loadBalancerClass": "a.b/c", "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    assert child(made(service=expected), "Service")["spec"].items() >= expected.items()
    default = child(made(service={"type": "LoadBalancer"}), "Service")["spec"]
    assert not {"loadBalancerClass", "loadBalancerSourceRanges"} & default.keys()


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "NodePort", "externalTrafficPolicy": "Local"},
        {"type": "LoadBalancer", "externalTrafficPolicy": "Cluster"},
        {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]},
        {"ipFamilyPolicy": "PreferDualStack"},
        {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        {"sessionAffinity": "ClientIP"},
        {"sessionAffinity": "None"},
        {},
    ],
)
def test_optional_fields_of_the_service_are_rendered_only_when_set(fields: dict) -> None:
    before = child(made(), "Service")["spec"]
    assert child(made(service=fields), "Service")["spec"] == {**before, **fields}
    assert child(made(service=fields), "Deployment") == child(made(), "Deployment")  # no pod restarts


def test_the_service_account_has_no_token_and_the_clouds_annotations() -> None:
    account = child(made(serviceAccount={"annotations": {"cloud/role": "x"}}), "ServiceAccount")
    assert account["metadata"]["name"] == template(made())["spec"]["serviceAccountName"] == "demo-engine"
    assert account["metadata"]["annotations"] == {"cloud/role": "x"}
    assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        ({"serviceAccountName": "other"}, "other"),
        ({"serviceAccount": "", "serviceAccountName": "other"}, "other"),
        ({"serviceAccount": "other", "serviceAccountName": "other"}, "other"),
        ({"serviceAccount": "other"}, "other"),
        ({"serviceAccount": "ignored", "serviceAccountName": "other"}, "other"),
        ({"serviceAccountName": None}, "default"),
        ({"serviceAccountName": ""}, "default"),
        ({"serviceAccount": None}, "demo-engine"),
    ],
)
def test_a_pod_template_changes_the_service_account_by_either_name(patch: dict[str, Any], name: str) -> None:
    pod = template(made(podTemplate={"spec": patch}))["spec"]
    assert pod["serviceAccountName"] == name
    assert pod.get("serviceAccount") in (None, patch.get("serviceAccountName"))


@pytest.mark.parametrize(
    ("spec", "budget"),
    [
        ({}, {"maxUnavailable": 1}),
        ({"replicas": 2}, {"maxUnavailable": 1}),
        ({"replicas": 2, "podDisruptionBudget": {"minAvailable": "50%"}}, {"minAvailable": "50%"}),
        ({"podDisruptionBudget": {}}, {"maxUnavailable": 1}),
        ({"autoscaling": HPA}, {"maxUnavailable": 1}),
        ({"replicas": 2, "suspend": True, "podDisruptionBudget": {}}, None),
    ],
)
def test_the_disruption_budget(spec: dict[str, Any], budget: dict[str, Any] | None) -> None:
    plan = made(**spec)
    if budget is None:
        assert "PodDisruptionBudget" not in kinds(plan)
    else:
        expected = child(plan, "PodDisruptionBudget")["spec"]
        assert expected.items() >= {**budget, "unhealthyPodEvictionPolicy": "AlwaysAllow"}.items()
        assert expected.keys() == {*budget, "unhealthyPodEvictionPolicy", "selector"}


def test_the_autoscaler_scales_the_resource_by_the_runtimes_metrics() -> None:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 60, "policies": [
        {"type": "Pods", "value": 1, "periodSeconds": 30}]}}  # fmt: skip
    targets = {"queuedRequestsPerReplica": 4, "runningRequestsPerReplica": 16, "kvCacheUtilizationPercent": 85}
    spec = child(made(autoscaling={**HPA, "targets": targets, "behavior": behavior}), "HorizontalPodAutoscaler")["spec"]
    assert spec["scaleTargetRef"]["kind"] == "DiffusionLMService"
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    assert spec["behavior"] == behavior
    assert [(m["pods"]["metric"]["name"], m["pods"]["target"]["averageValue"]) for m in spec["metrics"]] == [
        ("unmask_requests_waiting", "4"),
        ("unmask_requests_running", "16"),
        ("unmask_kv_usage_ratio", "850m"),
    ]
    builtin = {**HPA, "provider": "Builtin", "targets": targets}
    assert "HorizontalPodAutoscaler" not in kinds(made(autoscaling=builtin))


@pytest.mark.parametrize("targets", [{}, {"targets": {}}])
def test_without_targets_the_target_is_two_queued_requests_per_replica(targets: dict[str, Any]) -> None:
    (metric,) = child(made(autoscaling={**HPA, **targets}), "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["pods"]["metric"] == {"name": "unmask_requests_waiting"}
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "2"}
    rules = Rules.read(resource(autoscaling={"maxReplicas": 4, **targets})["spec"])
    assert rules is not None
    assert rules.targets == {"queuedRequestsPerReplica": 2}


def test_the_network_policy_always_allows_the_operator() -> None:
    peers = {
        "from": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "ops"}}}],
    }
    rule = child(made(networkPolicy=peers), "NetworkPolicy")["spec"]["ingress"][0]
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SETTINGS.namespace}},
        "podSelector": {"matchLabels": dict(SETTINGS.operator_selector)},
    }
    assert rule["from"] == [*peers["from"], operator, *peers["metricsFrom"]]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8000}]
    anyone = child(made(networkPolicy={}), "NetworkPolicy")["spec"]
    assert anyone["ingress"][0]["from"] == [{"namespaceSelector": {}}, operator]
    assert anyone["policyTypes"] == ["Ingress"]


def test_the_pod_monitor_finds_the_engines_port() -> None:
    monitor = child(made(monitoring={"podMonitor": {"labels": {"release": "prom"}, "interval": "30s"}}), "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "http", "path": "/metrics", "interval": "30s"}]


members = ["name", "containers", "startupProbe", "labels", "env", "ports", "volumes", "failureThreshold"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["main", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["name", "containers", "startupProbe", "labels", "env", "ports", "volumes", "failureThreshold"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
mains = st.dictionaries(st.sampled_from(["startupProbe", "env", "ports", "resources"]), anything, max_size=2)
specs = st.one_of(
    st.dictionaries(st.sampled_from(["containers", "volumes", "securityContext", "tolerations"]), anything, max_size=3),
    mains.map(lambda main: {"containers": [{**main, "name": "main"}]}),
)


def accepted_form(service: Any) -> Any:
    """Returns the rendered pod, or None if the podTemplate is rejected. Other errors are raised."""
    try:
        return render_pod(service, SETTINGS)
    except SpecError:
        return None


@given(st.dictionaries(st.sampled_from(["labels", "annotations", "name"]), anything, max_size=2), specs)
def test_any_pod_template_is_rendered_or_refused(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    service = parse(resource(podTemplate={"metadata": metadata, "spec": spec}))
    made_form = accepted_form(service)
    if made_form is None:
        return
    rendered = deployment(service, made_form.template)
    assert json.loads(json.dumps(rendered)) == rendered
    assert rendered["spec"]["template"]["metadata"]["labels"]["serving.unmask.dev/service"] == "demo"
    (main,) = (c for c in made_form.template["spec"]["containers"] if c["name"] == "main")
    assert {"name": "http", "containerPort": 8000, "protocol": "TCP"} in main["ports"]
    assert main["args"] == container(made())["args"]

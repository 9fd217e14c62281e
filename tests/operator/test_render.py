"""Tests of rendering: rule by rule, complete objects (snapshots/), and common labels and annotations."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import config
from tests.operator.samples import SETTINGS, child, container, kinds, main, make, observe, patch, resource, template
from tests.operator.snapshot import FOLDER, examples, rendered
from unmask_operator.api import SpecError, parse
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.objects import SERVICE_LABEL, Obj
from unmask_operator.render.labels import labels
from unmask_operator.render.pod import render_pod
from unmask_operator.render.workload import startup_budget, workload
from unmask_operator.settings import Settings

EXAMPLES = examples()
DISK = "ephemeral-storage"
SELECTOR = {SERVICE_LABEL: "demo"}
KEYS = {"auth": {"apiKeySecretRef": {"name": "keys", "key": "api"}}}
TOKEN = {"name": "hub", "key": "token"}
HPA = {"provider": "HPA", "minReplicas": 1, "maxReplicas": 4}
BEHAVIOR = {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}}
TARGETS = {"queuedRequestsPerReplica": 4, "runningRequestsPerReplica": 16, "kvCacheUtilizationPercent": 85}
OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SETTINGS.namespace}},
    "podSelector": {"matchLabels": dict(SETTINGS.operator_selector)},
}
BLOCK = {"ipBlock": {"cidr": "10.0.0.0/8"}}
PORTS = {"ports": [{"protocol": "TCP", "port": 8000}]}
METRICS = {"port": "http", "path": "/metrics", "interval": "9s"}
CLAIM = {"uri": "pvc://models/llada/2"}
MODEL = {"name": "model", "mountPath": "/mnt/model"}
OPTIONAL = {
    "loadBalancerClass": "a.b/c", "loadBalancerSourceRanges": ["10.0.0.0/8"], "externalTrafficPolicy": "Local",
    "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"], "sessionAffinity": "ClientIP",
}  # fmt: skip
SURGE = {"maxSurge": 0, "maxUnavailable": "25%"}


def stopped(section: str, **seconds: Any) -> Any:
    """Returns a spec with containers whose preStop hooks sleep."""
    hooks = {name: {"preStop": {"sleep": {"seconds": value}}} for name, value in seconds.items()}
    return patch(**{section: [{"name": name, "lifecycle": hook} for name, hook in hooks.items()]})


THREADS = "main env OMP_NUM_THREADS value"
DEADLINE, GRACE = "Deployment spec progressDeadlineSeconds", "pod terminationGracePeriodSeconds"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_rendered_as_in_its_snapshot(name: str) -> None:
    assert rendered(EXAMPLES[name]) == (FOLDER / f"{name}.yaml").read_text()


def test_every_snapshot_has_an_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(EXAMPLES)


def made(settings: Any = SETTINGS, **spec: Any) -> Any:
    return make(observe(resource(**spec)), settings)


def at(plan: Any, path: str) -> Any:
    """Returns the value at a path of words: `pod`, `main` or a kind, then members. None: absent.

    Entries of lists have the names of their flags, mount paths or names.
    """
    root, *members = path.split(" ")
    value = template(plan)["spec"] if root == "pod" else container(plan) if root == "main" else child(plan, root)
    for member in members:
        if isinstance(value, list):
            value = dict(one.split("=", 1) if isinstance(one, str) else _named(one) for one in value)
        value = (value or {}).get(member)
    return value


def _named(entry: Obj) -> tuple[str, Obj]:
    return entry.get("mountPath") or entry["name"], entry


def cache(**limit: str) -> Obj:
    return {"modelCache": {"emptyDir": limit}}


def gpus(count: int, *flags: str, **parallelism: int) -> tuple[Obj, Obj]:
    """Returns a row: the GPUs of the container, and the only flags of parallelism."""
    sizes = {f"main args --{name}-parallel-size": None for name in ("tensor", "data", "expert")}
    values = {f"main args --{name}-parallel-size": str(parallelism[name]) for name in flags}
    spec = {"gpu": {}, "parallelism": parallelism}
    return spec, {"main resources": {"limits": {"nvidia.com/gpu": count}}, **sizes, **values}


COMMON = {"commonLabels": {"team": "a"}, "commonAnnotations": {"owner": "a"}}
OWNER, OF_PODS = {"owner": "b", "x": "y"}, {"labels team": "b", "annotations owner": None}
SIZED = cache(sizeLimit="300Gi")
TENSOR = {"gpu": {}, "parallelism": {"tensor": 2}}
# Rules that no example of the snapshots shows.
RULES: list[tuple[Obj, Obj]] = [
    # volumes and resources; older schemas stored the default size of the cache
    ({"sharedMemorySize": "2Gi", **TENSOR}, {"pod volumes shm emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}),
    ({"gpu": {}, "parallelism": {"data": 4}}, {"pod volumes shm emptyDir sizeLimit": "1Gi"}),
    ({**SIZED, "resources": {"requests": {DISK: "1Gi"}}}, {"main resources": {"requests": {DISK: "1Gi"}}}),
    ({**SIZED, "resources": {"limits": {DISK: "1Gi"}}}, {"main resources": {"limits": {DISK: "1Gi"}}}),
    (cache(sizeLimit="100Gi"), {"pod volumes model-cache emptyDir sizeLimit": "100Gi", "main resources": {}}),
    gpus(1, tensor=1, data=1, expert=1),
    gpus(6, "tensor", "data", tensor=2, data=3),
    gpus(8, "tensor", "expert", tensor=8, expert=8),
    ({"gpu": {"resourceName": "amd.com/gpu"}}, {"main resources": {"limits": {"amd.com/gpu": 1}}}),
    (TENSOR | {"resources": {"limits": {"cpu": 4}}}, {"main resources limits": {"cpu": 4, "nvidia.com/gpu": 2}}),
    # a model on a claim
    ({"model": CLAIM}, {"pod volumes model persistentVolumeClaim": {"claimName": "models"}}),
    ({"model": CLAIM}, {"main volumeMounts /mnt/model": {**MODEL, "readOnly": True}}),
    ({"model": CLAIM}, {"main args --model": "/mnt/model/llada/2"}),
    ({"podTemplate": {"spec": {"topologySpreadConstraints": None}, "metadata": None}},
     {"pod topologySpreadConstraints": None}),
    # variables; those of the pod template are for older images
    ({}, {"main env HF_TOKEN": None, "main env UNMASK_HOST": None, "pod volumes trust": None}),
    (main(env=[{"name": "UNMASK_HOST", "value": "::"}]), {"main env UNMASK_HOST value": "::"}),
    # probes and times
    ({"startupProbe": {"periodSeconds": 2}}, {"main startupProbe periodSeconds": 2, DEADLINE: 2 * 720 + 600}),
    ({"startupProbe": {"failureThreshold": 5}}, {"main startupProbe failureThreshold": 5, DEADLINE: 625}),
    (main(startupProbe={"failureThreshold": 2**31 - 1}), {DEADLINE: 2**31 - 1}),
    ({"livenessProbe": {"timeoutSeconds": 9}}, {"main livenessProbe timeoutSeconds": 9}),
    ({"readinessProbe": {"periodSeconds": 9}}, {"main readinessProbe periodSeconds": 9}),
    ({"drainTimeoutSeconds": 100, "drainDelaySeconds": 300}, {GRACE: 410, "main args --drain-delay": "300"}),
    ({"gpu": {}, "parallelism": {"tensor": 4}, "resources": {"requests": {"cpu": "8"}}}, {THREADS: "2"}),
    ({"gpu": {}, "parallelism": {"tensor": 4}, "resources": {"limits": {"cpu": "6"}}}, {THREADS: "2"}),
    ({"gpu": {}, "parallelism": {"tensor": 4}, "resources": {"requests": {"cpu": "500m"}}}, {THREADS: "1"}),
    ({"gpu": {}, "resources": {"requests": {"cpu": 4}}}, {THREADS: "4"}),
    ({"gpu": {}, "resources": {"requests": {"cpu": 4}, "limits": {"cpu": 8}}}, {THREADS: None}),
    ({"gpu": {}, **main(resources={"requests": {"cpu": 3}})}, {THREADS: "3"}),
    ({"resources": {"requests": {"cpu": "250m"}}}, {THREADS: None}),  # on a CPU it may use idle cores
    ({"gpu": {}, "resources": {"requests": {"cpu": 4}}, **main(env=[{"name": "OMP_NUM_THREADS", "value": "7"}])},
     {THREADS: "7"}),
    ({"drainDelaySeconds": 0}, {GRACE: 70}),
    (stopped("containers", main=30), {GRACE: 110}),
    (stopped("containers", main=30) | {"drainDelaySeconds": 0}, {GRACE: 100}),
    (stopped("containers", main=30, proxy=20), {GRACE: 110}),
    (stopped("containers", proxy=200), {GRACE: 200}),
    (stopped("initContainers", mesh=200), {GRACE: 200}),
    (stopped("containers", main="30s"), {GRACE: 80}),
    (main(lifecycle="no"), {GRACE: 80}),
    (patch(terminationGracePeriodSeconds=20, **stopped("containers", main=30)["podTemplate"]["spec"]), {GRACE: 20}),
    # workload, Service and PodMonitor
    ({"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": "25%"}}, {"Deployment spec strategy rollingUpdate": SURGE}),
    ({"service": {"port": 8080}}, {"Service spec ports http port": 8080, "Service spec ports http targetPort": "http"}),
    ({"networkPolicy": {}}, {"NetworkPolicy spec ingress": [{"from": [{"namespaceSelector": {}}, OPERATOR], **PORTS}]}),
    ({"networkPolicy": {"from": [BLOCK]}}, {"NetworkPolicy spec ingress": [{"from": [BLOCK, OPERATOR], **PORTS}]}),
    ({"monitoring": {"podMonitor": {"labels": {"a": "b"}}}}, {"PodMonitor metadata labels a": "b"}),
    ({"monitoring": {"podMonitor": {"interval": "9s"}}}, {"PodMonitor spec podMetricsEndpoints": [METRICS]}),
    ({}, {f"Service spec {field}": None for field in OPTIONAL}),
    ({"service": {"type": "LoadBalancer", **OPTIONAL}},
     {f"Service spec {field}": value for field, value in OPTIONAL.items()}),
    # labels and annotations of a section override the common ones
    (COMMON, {"Deployment metadata labels team": "a", "Deployment metadata annotations owner": "a"}),
    (COMMON | {"service": {"annotations": OWNER}}, {"Service metadata annotations": OWNER}),
    (COMMON | {"serviceAccount": {"annotations": OWNER}}, {"ServiceAccount metadata annotations": OWNER}),
    (COMMON | {"monitoring": {"podMonitor": {"labels": {"team": "b"}}}}, {"PodMonitor metadata labels team": "b"}),
    (COMMON | {"podTemplate": {"metadata": {"labels": {"team": "b"}, "annotations": {"owner": None}}}},
     {f"Deployment spec template metadata {path}": value for path, value in OF_PODS.items()}),
    # ServiceAccount: the alias and the name of the pod template
    ({}, {"pod serviceAccountName": "demo-engine"}),
    (patch(serviceAccountName="other"), {"pod serviceAccountName": "other"}),
    (patch(serviceAccount="other"), {"pod serviceAccountName": "other", "pod serviceAccount": None}),
    (patch(serviceAccount="x", serviceAccountName="y"), {"pod serviceAccountName": "y", "pod serviceAccount": None}),
    (patch(serviceAccountName=None), {"pod serviceAccountName": "default"}),
    (patch(serviceAccountName=""), {"pod serviceAccountName": "default"}),
    (patch(serviceAccount=None), {"pod serviceAccountName": "demo-engine"}),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "expected"), RULES, ids=lambda value: json.dumps(value)[:70])
def test_a_rule_of_rendering(spec: Obj, expected: Obj) -> None:
    plan = made(**spec)
    assert {path: at(plan, path) for path in expected} == expected


def test_pods_with_all_sections_pass_restricted_pod_security_and_mount_what_is_writable() -> None:
    plan = made(replace(SETTINGS, ca_config_map="trust"), model={"uri": "pvc://models/a"}, gpu={}, **KEYS)
    pod, main = template(plan)["spec"], container(plan)
    (before,) = pod["initContainers"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    assert all(volume.keys() - {"name"} <= allowed for volume in pod["volumes"])
    for each in (main, before):
        switches = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
        assert each["securityContext"] == {"capabilities": {"drop": ["ALL"]}, **switches}
    assert {m["name"] for m in (*main["volumeMounts"], *before["volumeMounts"])} == {v["name"] for v in pod["volumes"]}
    writable = {mount["mountPath"] for mount in main["volumeMounts"] if not mount.get("readOnly")}
    for name in ("HOME", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"):
        assert any(f"{at(plan, f'main env {name} value')}/".startswith(f"{path}/") for path in writable), name


def test_the_charts_variables_and_secrets_reach_the_engine_and_no_variable_occurs_twice() -> None:
    """Server-side apply rejects a list with two entries of one name."""
    chart = {"OMP_NUM_THREADS": "4", "HTTPS_PROXY": "x", **dict.fromkeys(("HF_TOKEN", "MODEL_REVISION", "HOME"), "y")}
    settings = replace(SETTINGS, engine_env=chart, image_pull_secrets=("a", "b"))
    spec: Obj = {"model": {"uri": "hf://a/b", "tokenSecretRef": TOKEN}}
    plan = made(settings, **spec, imagePullSecrets=[{"name": "b"}, {"name": "c"}])
    names = [entry["name"] for entry in container(plan)["env"]]
    assert len(names) == len(set(names))
    values = {"HTTPS_PROXY": "x", "OMP_NUM_THREADS": "4", "HOME": "/tmp", "HF_TOKEN": None, "MODEL_REVISION": None}
    assert {name: at(plan, f"main env {name} value") for name in values} == values
    assert template(plan)["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}, {"name": "c"}]


def test_engines_listen_on_both_address_families_by_a_variable_of_the_image() -> None:
    dockerfile = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8").split("AS runtime\n")[1]
    (host,) = re.findall(r"^ENV UNMASK_DEFAULT_HOST=(\S+)$", dockerfile, re.MULTILINE)
    assert config.parse([], {"UNMASK_DEFAULT_HOST": host}).host == "::"


@pytest.mark.parametrize(
    ("probe", "seconds"),
    [({"initialDelaySeconds": 7}, 3607), ({"periodSeconds": 1}, 720), ({"periodSeconds": None}, 7200), (None, 0)],
)
def test_the_startup_budget_follows_the_pod_template(probe: Any, seconds: int) -> None:
    assert startup_budget(template(made(**main(startupProbe=probe)))) == seconds


@pytest.mark.parametrize("budget", [None, {}, {"minAvailable": "50%"}])
def test_the_disruption_budget(budget: Obj | None) -> None:
    spec = {} if budget is None else {"podDisruptionBudget": budget}
    expected = {"selector": {"matchLabels": SELECTOR}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    assert child(made(**spec), "PodDisruptionBudget")["spec"] == {**(budget or {"maxUnavailable": 1}), **expected}
    assert "PodDisruptionBudget" not in kinds(made(**spec, suspend=True))


@pytest.mark.parametrize(
    ("targets", "metrics"),
    [
        ({}, {"requests_waiting": "2"}),
        (TARGETS, {"requests_waiting": "4", "requests_running": "16", "kv_usage_ratio": "850m"}),
    ],
)
def test_the_autoscaler(targets: Obj, metrics: dict[str, str]) -> None:
    spec = child(made(autoscaling={**HPA, "targets": targets, "behavior": BEHAVIOR}), "HorizontalPodAutoscaler")["spec"]
    assert (spec["scaleTargetRef"]["kind"], spec["minReplicas"], spec["maxReplicas"]) == ("DiffusionLMService", 1, 4)
    assert spec["behavior"] == BEHAVIOR
    assert [metric["pods"] for metric in spec["metrics"]] == [
        {"metric": {"name": f"unmask_{name}"}, "target": {"type": "AverageValue", "averageValue": value}}
        for name, value in metrics.items()
    ]
    builtin = {**HPA, "provider": "Builtin", "targets": targets}
    assert "HorizontalPodAutoscaler" not in kinds(made(autoscaling=builtin))
    rules = Rules.read(resource(autoscaling=builtin)["spec"])
    assert rules.targets == (targets or {"queuedRequestsPerReplica": 2})


TAINTED = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
OWN = {"key": "team", "value": "a"}
GPU_NODES = Settings(gpu_tolerations=[TAINTED], gpu_node_selector={"pool": "gpu", "zone": "a"})
EMPTY = replace(SETTINGS, gpu_tolerations=[], gpu_node_selector={})
LINUX = {"kubernetes.io/os": "linux"}
MERGED = {"tolerations": [OWN, TAINTED], "nodeSelector": {"zone": "b", "disk": "ssd"}}
REMOVED = {"tolerations": None, "nodeSelector": {"zone": None}}


@pytest.mark.parametrize(
    ("settings", "spec", "tolerations", "selector"),
    [
        (GPU_NODES, {"gpu": {}}, [TAINTED], LINUX | {"pool": "gpu", "zone": "a"}),
        (GPU_NODES, {}, None, LINUX),
        (EMPTY, {"gpu": {}}, None, LINUX),
        (replace(EMPTY, engine_node_selector={}), {"gpu": {}}, None, None),
        (GPU_NODES, {"gpu": {}, "podTemplate": {"spec": MERGED}}, [TAINTED, OWN],
         LINUX | {"pool": "gpu", "zone": "b", "disk": "ssd"}),
        (GPU_NODES, {"gpu": {}, "podTemplate": {"spec": REMOVED}}, None, LINUX | {"pool": "gpu"}),
    ],
)  # fmt: skip
def test_engines_with_gpus_get_the_tolerations_and_node_selector(
    settings: Settings, spec: Obj, tolerations: object, selector: object
) -> None:
    found = template(made(settings, **spec))["spec"]
    assert (found.get("tolerations"), found.get("nodeSelector")) == (tolerations, selector)
    assert GPU_NODES.gpu_tolerations == [TAINTED], "rendering changed the settings"
    assert GPU_NODES.gpu_node_selector == {"pool": "gpu", "zone": "a"}


LABELS = {"team": "search", "example.com/cost-center": "", "app.kubernetes.io/part-of": "shop"}
ANNOTATIONS = {"example.com/owner": "Search, and Ads", "argocd.argoproj.io/compare-options": "IgnoreExtraneous"}
EVERY_CHILD = {
    "commonLabels": LABELS, "commonAnnotations": ANNOTATIONS, "model": {"uri": "hf://org/name"},
    "lora": {"adapters": [{"name": "a", "uri": "demo://roman"}]}, "autoscaling": {"provider": "HPA", "maxReplicas": 3},
    "networkPolicy": {}, "monitoring": {"podMonitor": {}},
}  # fmt: skip


def test_every_child_and_the_pods_have_the_common_metadata_and_no_selector_has_it() -> None:
    plan = made(**EVERY_CHILD)
    assert len(plan.children) == 10
    for obj in (*plan.children, template(plan)):
        assert obj["metadata"]["labels"].items() >= (LABELS | labels("demo")).items(), obj.get("kind")
        assert obj["metadata"]["annotations"].items() >= ANNOTATIONS.items(), obj.get("kind")
    assert at(plan, "Service spec selector") == SELECTOR
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        assert at(plan, f"{kind} spec selector") == {"matchLabels": SELECTOR}
    assert at(plan, "NetworkPolicy spec podSelector") == {"matchLabels": SELECTOR}
    (spread,) = template(plan)["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": SELECTOR}
    assert spread["matchLabelKeys"] == ["pod-template-hash"]


members = st.sampled_from(
    ["name", "containers", "startupProbe", "labels", "env", "ports", "volumes", "failureThreshold"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["main", "x", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(members, inner, max_size=3),
    max_leaves=8,
)
mains = st.dictionaries(st.sampled_from(["startupProbe", "env", "ports", "resources"]), anything, max_size=2)
specs = st.one_of(
    st.dictionaries(st.sampled_from(["containers", "volumes", "securityContext", "tolerations"]), anything, max_size=3),
    mains.map(lambda main: {"containers": [{**main, "name": "main"}]}),
)


@given(st.dictionaries(st.sampled_from(["labels", "annotations", "name"]), anything, max_size=2), specs)
def test_any_pod_template_is_rendered_or_refused(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    service = parse(resource(podTemplate={"metadata": metadata, "spec": spec}))
    before = copy.deepcopy(service.spec.pod_template)
    try:
        rendered = render_pod(service, SETTINGS)
    except SpecError:
        return
    assert service.spec.pod_template == before, "rendering changed the spec"
    pod, deployment = rendered.template, workload(service, rendered)
    assert json.loads(text := json.dumps(deployment)) == deployment
    assert "null" not in text
    assert pod["metadata"]["labels"][SERVICE_LABEL] == "demo"
    (main,) = (c for c in pod["spec"]["containers"] if c["name"] == "main")
    names = [entry["name"] for entry in main["env"]]
    assert len(names) == len(set(names)), "a variable occurs twice"
    assert {"name": "http", "containerPort": 8000, "protocol": "TCP"} in main["ports"]
    assert main["args"] == container(made())["args"]

"""Tests of the status with a real controller-manager. No kubelet runs: the tests write the pods' status."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster import ApiError, ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, cluster_wide
from tests.operator.live.kubelet import bind, engine, first_pod, make_node, run
from tests.operator.live.objects import condition, demo, read, wait_all_true, wait_condition
from unmask_operator.controller.adapters import LIST_HASH
from unmask_operator.objects import SERVICE_LABEL

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]


@pytest.fixture
def namespace(controlled_namespace: str) -> str:
    return controlled_namespace


@pytest.fixture
def admin(controlled_admin: Kube) -> Kube:
    return controlled_admin


@pytest.fixture(scope="module")
def operator(controlled_api_server: ApiServer, controlled_admin: Kube) -> Iterator[OperatorProcess]:
    """Yields one operator of the whole cluster for all tests of the module."""
    yield from cluster_wide(controlled_api_server, controlled_admin)


def test_a_quota_that_refuses_the_pods(admin, namespace):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": namespace}}
    admin.create({**quota, "spec": {"hard": {"pods": "0"}}})
    admin.wait("the quota counts", lambda: admin.get("v1", "ResourceQuota", "none", namespace)["status"].get("hard"))
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Ready", "False", "PodCreationRefused", "exceeded quota: none")


def test_a_pod_without_gpu_then_crashing_then_ready_and_an_edit_that_does_not_change_it(admin, namespace):
    node = make_node(admin, "1")
    resource = admin.create(demo(namespace, gpu={}, parallelism={"tensor": 2}))
    pod = first_pod(admin, resource)
    sentence = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": sentence}
    admin.patch(pod, {"status": {"conditions": [unscheduled]}}, subresource="status")
    says = "needs 2 nvidia.com/gpu and the largest node has 1: it never fits"
    wait_condition(admin, resource, "Ready", "False", "InsufficientGPU", says)

    bind(admin, pod, node)
    ended = {"exitCode": 1, "reason": "Error", "message": "INFO starting\nerror: --page-size: 32 does not fit\n"}
    run(admin, pod, "127.0.0.1", started=False, ready=False, last={"terminated": ended})
    says = "container main ended with exit code 1: error: --page-size: 32 does not fit"
    wait_condition(admin, resource, "Ready", "False", "CrashLoopBackOff", says)

    run(admin, pod, "127.0.0.1", started=True, ready=True)
    wait_all_true(admin, resource)
    status = read(admin, resource)["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (1, 1, 1)
    assert status["currentRevision"] == "demo-r1"

    admin.patch(resource, {"spec": {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}}})
    admin.wait("demo-r2", lambda: read(admin, resource)["status"]["currentRevision"] == "demo-r2")
    wait_all_true(admin, resource)
    assert "RolloutStarted" not in {event["reason"] for event in admin.list("events.k8s.io/v1", "Event", namespace)}
    admin.delete(node)


def test_the_hpas_message_is_quoted_when_no_metrics_adapter_runs(admin, namespace):
    targets = {"runningRequestsPerReplica": 4}
    resource = admin.create(demo(namespace, autoscaling={"provider": "HPA", "maxReplicas": 3, "targets": targets}))
    # FailedGetScale precedes it until the controller-manager has discovered the CRD, which may take a minute
    wait_condition(admin, resource, "ScalingReady", "False", "FailedGetPodsMetric", "unmask_requests_running")


def test_the_builtin_autoscaler_scales_up_and_down(admin, namespace):
    load = {"waiting": 25.0, "running": 4.0}
    autoscaling = {
        "maxReplicas": 4,
        "targets": {"queuedRequestsPerReplica": 10},
        "pollingIntervalSeconds": 1,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 3}},
    }

    def metrics() -> str:
        lines = (f"unmask_requests_{name} {value}" for name, value in load.items())
        return "\n".join((*lines, "unmask_kv_usage_ratio 0.1")) + "\n"

    with engine({"/metrics": metrics}) as address:
        resource = admin.create(demo(namespace, autoscaling=autoscaling))
        run(admin, first_pod(admin, resource), address, started=True, ready=True)
        wait_condition(admin, resource, "ScalingReady", "True")
        admin.wait("three replicas", lambda: read(admin, resource)["spec"]["replicas"] == 3)
        load["waiting"] = 0.0
        admin.wait("one replica", lambda: read(admin, resource)["spec"]["replicas"] == 1)
        admin.wait("the decision", lambda: read(admin, resource)["status"]["autoscaling"]["desired"] == 1)
        assert "lastScaleTime" in read(admin, resource)["status"]
        admin.wait("the Deployment", lambda: read(admin, resource)["status"]["replicas"] == 1)
    notes = [event["note"] for event in admin.events(namespace, "Scaled", at_least=2)]
    assert any(note.endswith("to 3 replicas: scaled up for queuedRequestsPerReplica") for note in notes)
    assert "from 3 to 1 replicas: scaled down: all samples in the stable window required fewer replicas" in notes


ROMAN = {"name": "roman", "uri": "demo://roman"}
LEGAL = {"name": "legal", "uri": "hf://org/legal", "revision": "v2"}
WRONG = {"name": "wrong", "uri": "hf://org/of-another-model"}


def test_adapters_are_added_and_removed_while_the_pod_serves(admin, namespace):
    def listed():
        return admin.get("v1", "ConfigMap", "demo-adapters", namespace).get("data") or {}

    def report() -> str:
        states = {
            name: {"state": "failed" if name == "wrong" else "ready", "uri": uri} for name, uri in listed().items()
        }
        return json.dumps({"status": "started", "adapters": states})

    def annotation():
        metadata = admin.get("v1", "Pod", pod["metadata"]["name"], namespace)["metadata"]
        return metadata.get("annotations", {}).get(LIST_HASH)

    node = make_node(admin, "0")
    resource = admin.create(demo(namespace, lora={"adapters": [ROMAN]}))
    with engine({"/startup": report}) as address:
        pod = first_pod(admin, resource)
        bind(admin, pod, node)
        run(admin, pod, address, started=True, ready=True)
        wait_condition(admin, resource, "AdaptersLoaded", "True")
        first = admin.wait("the kubelet is told of the list", annotation)

        admin.patch(resource, {"spec": {"lora": {"adapters": [ROMAN, LEGAL, WRONG]}}})
        admin.wait("the kubelet is told of another", lambda: annotation() != first)
        wait_condition(admin, resource, "AdaptersLoaded", "False", "AdapterFailed", "wrong in 1 of 1 pods")
        wait_condition(admin, resource, "Ready", "True")
        adapters = read(admin, resource)["status"]["adapters"]
        assert [(one["name"], one["ready"], one["failed"]) for one in adapters] == [
            ("roman", 1, 0),
            ("legal", 1, 0),
            ("wrong", 0, 1),
        ]
        admin.patch(resource, {"spec": {"lora": {"adapters": [LEGAL]}}})
        wait_condition(admin, resource, "AdaptersLoaded", "True")
        assert listed() == {"legal": "hf://org/legal@v2"}
        admin.patch(resource, {"spec": {"lora": {"adapters": []}}})
        admin.wait("no word of adapters", lambda: "adapters" not in read(admin, resource)["status"])
        assert condition(admin, resource, "AdaptersLoaded") == {}
    deployment = admin.get("apps/v1", "Deployment", "demo", namespace)
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1", "the pods are replaced"
    assert len(admin.events(namespace, "AdapterFailed")) == 1
    admin.delete(node)


@pytest.mark.parametrize(
    ("spec", "reason", "correction"),
    [
        ({"suspend": True}, "Suspended", {"suspend": False}),
        ({"engine": {"extraArgs": ["--no-such-flag=1"]}}, "InvalidSpec", {"engine": None}),
        ({"podTemplate": {"spec": {"containers": [{"name": "side"}]}}}, "Refused", {"podTemplate": None}),
    ],
)
def test_an_edit_that_needs_an_action_ends_the_waits_of_flux_and_helm(admin, namespace, spec, reason, correction):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Ready", "False", "Pending")
    assert condition(admin, resource, "Stalled") == {}
    admin.patch(resource, {"spec": spec})
    wait_condition(admin, resource, "Stalled", "True", reason)
    admin.patch(resource, {"spec": correction})
    wait_condition(admin, resource, "Ready", "False", "Pending")
    assert condition(admin, resource, "Stalled") == {}


def test_a_pod_reason_that_is_invalid_for_conditions_is_made_valid(admin, namespace):
    resource = admin.create(demo(namespace))
    pod = first_pod(admin, resource)
    main = {"name": "main", "image": "engine:1", "imageID": "", "ready": False, "restartCount": 0}
    waiting = {"reason": "Provider failed to create it", "message": "x" * 3000}
    status = {"phase": "Pending", "containerStatuses": [{**main, "state": {"waiting": waiting}}]}
    admin.patch(pod, {"status": status}, subresource="status")
    wait_condition(admin, resource, "ModelLoaded", "False", "ProviderFailedToCreateIt", waiting["reason"])
    (event, *_) = admin.events(namespace, "ProviderFailedToCreateIt")
    assert event["type"] == "Warning"


def test_a_status_that_is_refused_is_replaced_by_a_minimal_one(admin, namespace, operator):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    rule = {"apiGroups": ["serving.unmask.dev"], "apiVersions": ["*"], "resources": ["diffusionlmservices/status"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    match = {"resourceRules": [{**rule, "operations": ["UPDATE"]}], "namespaceSelector": selector}
    validation = {"expression": "!has(object.status.url)", "message": "no URL in a status", "reason": "Invalid"}
    api, meta = "admissionregistration.k8s.io/v1", {"metadata": {"name": f"status-{namespace}"}}
    policy = {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", **meta}
    policy["spec"] = {"failurePolicy": "Fail", "matchConstraints": match, "validations": [validation]}
    binding = {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", **meta}
    binding["spec"] = {"policyName": f"status-{namespace}", "validationActions": ["Deny"]}
    admin.create(policy)
    admin.create(binding)

    def denies() -> bool:
        # The policy may have rejected the operator's status already. Then the resource has no URL unless this write
        # adds one.
        try:
            admin.patch(resource, {"status": {"modelName": "probe", "url": "http://probe"}}, subresource="status")
        except ApiError:
            return True
        return False

    admin.wait("the policy holds", denies)
    admin.patch(resource, {"spec": {"replicas": 3, "service": {"port": 81}}})
    wait_condition(admin, resource, "Accepted", "True")  # condition of this generation
    status = read(admin, resource)["status"]
    assert "url" not in status
    assert status["selector"] == f"{SERVICE_LABEL}=demo"
    (event,) = admin.events(namespace, "StatusRefused")
    assert (event["type"], "no URL in a status" in event["note"]) == ("Warning", True)
    assert operator.metric("unmask_operator_status_refusals_total") >= 1
    admin.delete(binding)
    admin.delete(policy)
    admin.wait("the whole status is back", lambda: "url" in read(admin, resource)["status"])
    assert len(admin.events(namespace, "StatusRefused")) == 1

"""Tests of conditions about a pod without a node: the scheduler's reasons, and the field to change."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.pod_states import gpu_node, judge_pod, taint, unschedulable
from tests.operator.recorded import pod, reconcile
from unmask_operator.objects import Obj
from unmask_operator.status import status
from unmask_operator.status.scheduling.node_fit import is_tolerated, split_nodes
from unmask_operator.status.scheduling.scheduler_message import parse_reasons

GPU_TAINT = taint("nvidia.com/gpu", "present")
NOT_READY = [{"type": "Ready", "status": "Unknown"}]


def scheduled(message: str, nodes: list[Obj] | None = None, **spec: Any) -> Obj:
    """Returns the condition Scheduled of a GPU service with the scheduler's message."""
    found = judge_pod(unschedulable(message), None, nodes, **{"gpu": {}, **spec})
    assert found["Ready"]["message"] == found["Scheduled"]["message"]
    return found["Scheduled"]


def start(condition: Obj) -> str:
    """Returns the part of the message before the quoted message of the scheduler."""
    return str(condition["message"].partition(" (0/")[0])


def test_the_schedulers_sentence_is_parsed_into_reasons_with_counts() -> None:
    message = (
        "0/5 nodes are available: 1 node(s) had untolerated taint {a.example/b: c}, 1 node(s) had taint {d: }, that "
        "the pod didn't tolerate, 2 Insufficient nvidia.com/mig-1g.5gb, pod "
        "has unbound immediate PersistentVolumeClaims."
    )
    reasons = parse_reasons(message)
    assert [(reason.count, reason.taint_key, reason.resource) for reason in reasons[:2]] == [
        (1, "a.example/b", None),
        (1, "d", None),
    ]
    assert reasons[2].count == 2
    (alone,) = parse_reasons("0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.5gb.")
    assert (alone.count, alone.resource, str(alone)) == (
        1,
        "nvidia.com/mig-1g.5gb",
        "1 Insufficient nvidia.com/mig-1g.5gb",
    )
    (single,) = parse_reasons("no nodes available to schedule pods")
    assert (single.count, single.text) == (None, "no nodes available to schedule pods")


@pytest.mark.parametrize(
    ("message", "node", "says"),
    [
        (
            "1 node(s) had untolerated taint(s)",
            {"taints": [GPU_TAINT]},
            ["taint", "toleration of nvidia.com/gpu", "spec.podTemplate.spec.tolerations", "gpuEngines.tolerations"],
        ),
        (
            "1 node(s) had untolerated taint {nvidia.com/gpu: present}",
            {"taints": [GPU_TAINT]},
            ["taint", "toleration of nvidia.com/gpu", "spec.podTemplate.spec.tolerations", "gpuEngines.tolerations"],
        ),
        ("1 node(s) were unschedulable", {"unschedulable": True}, ["kubectl uncordon g "]),
        (
            "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }",
            {"taints": [taint("node.kubernetes.io/unreachable")]},
            ["the node is not Ready"],
        ),
        (
            "1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }",
            {"taints": [taint("node.kubernetes.io/disk-pressure")]},
            ["the node's disk is full"],
        ),
        (
            "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }",
            {"taints": [taint("node-role.kubernetes.io/control-plane")]},
            ["add a worker node, or tolerate node-role.kubernetes.io/control-plane"],
        ),
    ],
)
def test_a_node_with_gpus_that_excludes_the_pod_is_not_called_busy(message: str, node: Obj, says: list[str]) -> None:
    nodes = [gpu_node("g", **node), gpu_node("c", None)]
    found = scheduled(f"0/2 nodes are available: 1 Insufficient nvidia.com/gpu, {message}.", nodes)
    assert found["reason"] == "Unschedulable"
    assert "busy" not in found["message"]
    assert start(found).startswith(message)
    for text in says:
        assert text in start(found)
    assert "no node that it may run on has any; not counted with nvidia.com/gpu: node g (8) " in found["message"]
    assert found["message"].endswith(f"(0/2 nodes are available: 1 Insufficient nvidia.com/gpu, {message})")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("1 Insufficient memory", "lower spec.resources.requests.memory"),
        ("1 Insufficient cpu", "lower spec.resources.requests.cpu"),
        ("1 Insufficient ephemeral-storage", "lower spec.modelCache.emptyDir.sizeLimit"),
        ("1 Insufficient hugepages-2Mi", "spec.resources.limits.hugepages-2Mi"),
        ("1 Insufficient rdma/hca", "add a node that has rdma/hca"),
        ("1 Too many pods", "remove pods there"),
        ("1 node(s) had volume node affinity conflict", "the volume of a PersistentVolumeClaim is in a zone"),
        ("1 node(s) had no available volume zone", "the volume of a PersistentVolumeClaim is in a zone"),
        ("1 node(s) didn't find available persistent volumes to bind", "no PersistentVolume fits the claim"),
        ("1 node(s) exceed max volume count", "maximum number of volumes"),
        ("1 node(s) didn't have free ports for the requested pod ports", "remove hostPort"),
        ("1 node(s) didn't match pod topology spread constraints", "spec.podTemplate.spec.topologySpreadConstraints"),
        ("1 node(s) didn't match pod anti-affinity rules", "spec.podTemplate.spec.affinity.podAntiAffinity"),
        ("1 node(s) didn't satisfy existing pods anti-affinity rules", "spec.podTemplate.metadata.labels"),
        ("1 node(s) didn't match pod affinity rules", "spec.podTemplate.spec.affinity.podAffinity"),
        ("1 cannot allocate all claims", "spec.podTemplate.spec.resourceClaims"),
    ],
)
def test_a_node_that_is_short_of_something_else_is_not_called_busy(message: str, says: str) -> None:
    """Checks this with a node whose GPUs are free. The message counts the other node as one without GPUs."""
    sentence = f"0/2 nodes are available: 1 Insufficient nvidia.com/gpu, {message}."
    for nodes in ([gpu_node("g"), gpu_node("c", None)], None):
        found = scheduled(sentence, nodes)
        assert (found["reason"], "busy" in found["message"]) == ("Unschedulable", False)
        assert start(found).startswith(message)
        assert says in start(found)
    alone = scheduled(f"0/1 nodes are available: {message}.", [gpu_node("g")])
    assert alone["reason"] == "Unschedulable"
    assert start(alone).startswith(f"{message}: ")
    assert says in start(alone)


def test_gpus_that_are_short_together_with_memory_are_still_named() -> None:
    nodes = [gpu_node("g1"), gpu_node("g2"), gpu_node("c", None)]
    found = scheduled("0/3 nodes are available: 1 Insufficient memory, 2 Insufficient nvidia.com/gpu.", nodes)
    assert found["reason"] == "InsufficientGPU"
    assert start(found).startswith("1 Insufficient memory: lower spec.resources.requests.memory")
    assert "needs 1 nvidia.com/gpu and the largest node that it may run on has 8, not all free" in start(found)
    assert "busy" not in found["message"]


@pytest.mark.parametrize("field", ["nodeSelector", "affinity"])
def test_a_node_that_the_selector_excludes_is_named_with_the_field(field: str) -> None:
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    chosen = {"nodeSelector": {"pool": "a"}} if field == "nodeSelector" else {"affinity": {"nodeAffinity": required}}
    sentence = (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector."
    )
    cpu = gpu_node("c", None)
    cpu["metadata"]["labels"] = {"pool": "a"}
    found = scheduled(sentence, [gpu_node("g"), cpu], podTemplate={"spec": chosen})
    assert found["reason"] == "Unschedulable"
    assert "correct spec.podTemplate.spec.nodeSelector or spec.podTemplate.spec.affinity.nodeAffinity" in start(found)
    assert "gpuEngines.nodeSelector of the chart" in start(found)
    assert "node g (8) does not match the " in start(found)
    assert "busy" not in found["message"]


def test_only_missing_gpus_are_called_busy() -> None:
    nodes = [gpu_node("g"), gpu_node("c", None)]
    found = scheduled("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", nodes)
    assert found["reason"] == "InsufficientGPU"
    assert "the largest node has 8, not all free; they are busy now" in found["message"]


def test_tainted_nodes_without_gpus_do_not_hide_that_the_others_are_busy() -> None:
    nodes = [gpu_node("g"), gpu_node("c", None, taints=[taint("pool", "web")])]
    message = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {pool: web}."
    assert "they are busy now" in scheduled(message, nodes)["message"]
    unknown = scheduled(message)
    assert "busy" not in unknown["message"]
    assert "add a toleration of pool" in start(unknown)


def test_a_shortage_is_permanent_if_the_largest_allowed_node_is_too_small() -> None:
    nodes = [gpu_node("small", "2"), gpu_node("tainted", taints=[GPU_TAINT]), gpu_node("cordoned", unschedulable=True)]
    message = (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {nvidia.com/gpu: "
        "present}, 1 node(s) were unschedulable."
    )
    found = scheduled(message, nodes, parallelism={"tensor": 4})
    assert found["reason"] == "InsufficientGPU"
    assert "needs 4 nvidia.com/gpu and the largest node that it may run on has 2: it never fits" in start(found)
    assert "node cordoned (8) is cordoned, node tainted (8) has the untolerated taint nvidia.com/gpu=present" in start(
        found
    )
    assert start(found).startswith("1 node(s) had untolerated taint {nvidia.com/gpu: present}: add a toleration")


def test_a_node_that_is_not_ready_does_not_count() -> None:
    lost = gpu_node("lost")
    lost["status"]["conditions"] = NOT_READY
    message = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {{{}: }}."
    for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"):
        found = scheduled(message.format(key), [gpu_node("small", "1"), lost], parallelism={"tensor": 2})
        assert "the largest node that it may run on has 1: it never fits" in found["message"]
        assert "node lost (8) is not Ready" in found["message"]


def test_the_schedulers_message_takes_precedence_over_newer_taints_of_nodes() -> None:
    """Checks nodes that were tainted or cordoned after the scheduler's attempt. The scheduler retries immediately."""
    for node in (gpu_node("g", taints=[GPU_TAINT]), gpu_node("g", unschedulable=True)):
        found = scheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", [node])
        assert (found["reason"], "busy" in found["message"]) == ("InsufficientGPU", True)


def test_no_gpu_on_any_node_names_the_device_plugin() -> None:
    found = scheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", [gpu_node("c", None)])
    assert found["reason"] == "InsufficientGPU"
    assert (
        "no node that it may run on has any: add a node with GPUs, or install their device plugin" in found["message"]
    )


def test_a_mig_slice_is_a_resource_of_its_own() -> None:
    slices = "nvidia.com/mig-3g.40gb"
    nodes = [gpu_node("g", "2", slices, taints=[taint("mig", "yes")]), gpu_node("c", None)]
    message = f"0/2 nodes are available: 1 Insufficient {slices}, 1 node(s) had untolerated taint {{mig: yes}}."
    found = scheduled(message, nodes, gpu={"resourceName": slices})
    assert "add a toleration of mig" in start(found)
    assert f"a pod needs 1 {slices}" in start(found)
    wrong = scheduled(message, nodes)
    assert wrong["reason"] == "Unschedulable"
    assert "spec.gpu.resourceName" in start(wrong)


def test_a_service_without_gpus_is_not_sent_to_the_charts_gpu_values() -> None:
    message = "0/1 nodes are available: 1 node(s) had untolerated taint {pool: web}."
    found = judge_pod(unschedulable(message), None)["Scheduled"]
    assert found["reason"] == "Unschedulable"
    assert "spec.podTemplate.spec.tolerations" in found["message"]
    assert "gpuEngines" not in found["message"]


UNNAMED = "1 node(s) had untolerated taint(s)"  # the complete reason in messages of Kubernetes 1.34


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (gpu_node("g", taints=[taint("node.kubernetes.io/memory-pressure")]), "the node is short of memory"),
        (gpu_node("g", taints=[taint("node.kubernetes.io/unreachable")]), "the node is not Ready"),
        (gpu_node("g", taints=[taint("pool"), taint("a")]), "toleration of a to spec.podTemplate.spec.tolerations"),
        (
            gpu_node("g", taints=[taint("node-role.kubernetes.io/control-plane")]),
            "tolerate node-role.kubernetes.io/control-plane",
        ),
    ],
)
def test_taints_that_the_message_does_not_name_are_read_from_the_nodes(node: Obj, says: str) -> None:
    other = gpu_node("c", None, taints=[taint("web")])
    for message in (f"1 Insufficient nvidia.com/gpu, {UNNAMED}", UNNAMED):
        found = scheduled(f"0/2 nodes are available: {message}.", [node, other])
        assert found["reason"] == "Unschedulable"
        assert says in start(found)
        assert "toleration of web" not in start(found)
    unknown = scheduled(f"0/1 nodes are available: {UNNAMED}.")
    assert "tolerations of the taints that kubectl describe node lists" in start(unknown)


def test_an_unnamed_taint_of_nodes_without_gpus_does_not_hide_that_the_others_are_busy() -> None:
    nodes = [gpu_node("g"), gpu_node("c", None, taints=[taint("node-role.kubernetes.io/control-plane")])]
    found = scheduled(f"0/2 nodes are available: 1 Insufficient nvidia.com/gpu, {UNNAMED}.", nodes)
    assert (found["reason"], "busy" in found["message"]) == ("InsufficientGPU", True)


def test_control_plane_nodes_are_left_out_where_there_are_other_reasons() -> None:
    message = (
        "0/2 nodes are available: 1 Insufficient memory, 1 node(s) had untolerated taint "
        "{node-role.kubernetes.io/control-plane: }."
    )
    assert start(scheduled(message)).startswith("1 Insufficient memory: lower")
    assert "control-plane" not in start(scheduled(message))


@pytest.mark.parametrize(
    "message",
    [
        "0/1 nodes are available: 1 NodeUnfitPod.",
        "0/1 nodes are available: 1 card is in use, 7 of 8.",
        "running PreBind plugin: binding volumes: timed out waiting for the condition",
    ],
)
def test_a_reason_that_is_not_known_is_quoted(message: str) -> None:
    found = scheduled(message)
    assert (found["reason"], found["message"]) == ("Unschedulable", message.removesuffix("."))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("no nodes available to schedule pods", "the cluster has no node; add one"),
        ("Scheduling is blocked due to non-empty scheduling gates", "spec.podTemplate.spec.schedulingGates"),
        (
            '0/1 nodes are available: waiting for resource claim controller to create the resourceclaim "a".',
            "spec.podTemplate.spec.resourceClaims",
        ),
    ],
)
def test_a_sentence_about_no_node_is_explained_too(message: str, says: str) -> None:
    assert says in scheduled(message)["message"]


def test_no_toleration_of_temporary_taints_is_advised() -> None:
    for key in ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "node.cilium.io/agent-not-ready"):
        found = scheduled(f"0/1 nodes are available: 1 node(s) had untolerated taint {{{key}: }}.")
        assert "tolerations" not in found["message"]
        assert "the node is still starting" in start(found) or "about to remove the node" in start(found)


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_a_rollout_that_finds_no_cpu_or_memory_names_the_rollout_strategy(resource: str) -> None:
    surge = pod("unschedulable_gpu")
    surge["status"]["conditions"][0]["message"] = f"0/3 nodes are available: 3 Insufficient {resource}."
    found = {c["type"]: c for c in status(*reconcile("surging", pod("ready"), surge))["conditions"]}
    for condition in ("Scheduled", "RolloutComplete", "Ready"):
        assert found[condition]["reason"] == "Unschedulable"
        assert (
            "the old pods still serve: set maxSurge 0, maxUnavailable 1 in spec.rolloutStrategy"
            in found[condition]["message"]
        )


def test_a_tainted_node_is_not_called_busy_in_a_rollout() -> None:
    surge = pod("unschedulable_gpu")
    message = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {pool: web}."
    surge["status"]["conditions"][0]["message"] = message
    nodes = [gpu_node("old", "4"), gpu_node("new", "4", taints=[taint("pool", "web")])]
    found = {c["type"]: c for c in status(*reconcile("surging", pod("ready"), surge, nodes=nodes))["conditions"]}
    rollout = found["RolloutComplete"]
    assert rollout["reason"] == "InsufficientGPU"
    assert rollout["message"].startswith("1 node(s) had untolerated taint {pool: web}: add a toleration of pool")
    assert "free a GPU or set maxSurge 0, maxUnavailable 1" in rollout["message"]
    assert "busy" not in rollout["message"]


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations_are_those_of_the_scheduler(toleration: Obj, tolerated: bool) -> None:
    assert is_tolerated(taint("k", "v"), [toleration]) is tolerated
    assert is_tolerated(taint("k", "v", "PreferNoSchedule"), [])
    assert not is_tolerated(taint("k", "v", "NoExecute"), [])


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ({"key": "a", "operator": "In", "values": ["1", "2"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "b", "operator": "Exists"}, False),
        ({"key": "b", "operator": "DoesNotExist"}, True),
        ({"key": "a", "operator": "Gt", "values": ["0"]}, True),
        ({"key": "a", "operator": "Lt", "values": ["1"]}, False),
        ({"key": "b", "operator": "Gt", "values": ["0"]}, False),
    ],
)
@pytest.mark.parametrize("member", ["matchExpressions", "matchFields"])
def test_required_affinity_is_that_of_the_scheduler(expression: Obj, matches: bool, member: str) -> None:
    node = {"metadata": {"name": "n", "labels": {"a": "1"}}}
    if member == "matchFields":
        expression, matches = {"key": "metadata.name", "operator": "In", "values": ["n"]}, True
    terms = [{}, {member: [expression]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    allowed, excluded = split_nodes({"spec": {"affinity": {"nodeAffinity": required}}}, [node])
    assert (len(allowed), len(excluded)) == ((1, 0) if matches else (0, 1))


def test_a_windows_node_is_excluded_by_the_selector_of_every_engine() -> None:
    windows, linux = gpu_node("w"), gpu_node("l")
    windows["metadata"]["labels"]["kubernetes.io/os"] = "windows"
    linux["metadata"]["labels"]["kubernetes.io/os"] = "linux"
    rendered = {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}
    fitting, excluded = split_nodes(rendered, [windows, linux, gpu_node("u")])
    assert [node["metadata"]["name"] for node in fitting] == ["l", "u"]
    assert [one.reason for one in excluded] == ["does not match the nodeSelector kubernetes.io/os=linux"]
    message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    assert "engine.nodeSelector or gpuEngines.nodeSelector of the chart" in scheduled(message, [windows])["message"]


def test_an_unbound_claim_of_an_ephemeral_volume_is_named() -> None:
    template = {"spec": {"accessModes": ["ReadWriteOnce"]}}
    volumes = [
        {"name": "model", "persistentVolumeClaim": {"claimName": "models"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}},
        {"name": "tmp", "emptyDir": {}},
    ]
    state = unschedulable("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
    found = judge_pod(state, None, pod_spec={"volumes": volumes})["Scheduled"]
    assert found["reason"] == "PersistentVolumeClaimUnbound"
    assert "no volume yet: models, demo-p1-scratch; " in found["message"]

"""Tests of conditions about a pod without a node: the scheduler's reasons, and the field to change."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.operator.pod_states import check, gpu_node, judge, observe_pod, taint, unschedulable
from tests.operator.recorded import pod, reconcile
from unmask_operator.objects import Obj
from unmask_operator.plan.observed import Observed
from unmask_operator.status.scheduling.node_fit import is_tolerated, split_nodes

GPU_TAINT = taint("nvidia.com/gpu", "present")
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
SLICES = "nvidia.com/mig-3g.40gb"
FIELD = "spec.podTemplate.spec"
NO_GPU = "1 Insufficient nvidia.com/gpu"
UNNAMED = "1 node(s) had untolerated taint(s)"  # the complete reason in messages of Kubernetes 1.34
UNMATCHED = "1 node(s) didn't match Pod's node affinity/selector"
TOLERATE = f"toleration of nvidia.com/gpu to {FIELD}.tolerations or to gpuEngines.tolerations of the chart"
NO_NODE = "no node that it may run on has any"


def tainted(key: str, value: str = "") -> str:
    """Returns the scheduler's reason for a taint."""
    return f"1 node(s) had untolerated taint {{{key}: {value}}}"


def labelled(node: Obj, **labels: str) -> Obj:
    node["metadata"]["labels"] |= labels
    return node


def lost(name: str) -> Obj:
    node = gpu_node(name)
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    return node


def of(reasons: str, nodes: list[Obj] | None = None, **spec: Any) -> Observed:
    """Returns the state of a GPU service with the scheduler's reasons."""
    message = f"0/{len(nodes or [1])} nodes are available: {reasons}."
    return observe_pod(unschedulable(message), None, nodes, **{"gpu": {}, **spec})


def check_scheduled(observed: Observed, expected: str, quoted: str = "") -> None:
    """Checks the message before the quoted one of the scheduler, and parts of the quoted one."""
    found = judge(observed)
    assert found["Ready"]["message"] == found["Scheduled"]["message"]
    check(found, f"Scheduled False  {quoted}")
    explained = found["Scheduled"]["message"].partition(" (0/")[0]
    check({"Scheduled": {**found["Scheduled"], "message": explained}}, f"Scheduled False {expected}")


UNSEEN = observe_pod({"phase": "Pending"}, None)
ABSENT = observe_pod({"phase": "Pending"}, None, pod_spec={"schedulerName": "hami-scheduler"})
NOT_SEEN = "Ready,Scheduled False NoScheduler no scheduler has handled pod demo-p1: check that the scheduler"


def test_a_pod_that_no_scheduler_handles_names_the_scheduler() -> None:
    check(judge(UNSEEN), f"{NOT_SEEN} default-scheduler runs ... !schedulerName")
    check(judge(ABSENT), f"{NOT_SEEN} hami-scheduler runs, or correct {FIELD}.schedulerName")
    early = replace(UNSEEN, now=datetime.fromisoformat("2026-01-02T03:00:29Z"))
    check(judge(early), "Scheduled False Pending")
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    check(judge(observe_pod({"conditions": [gated]}, None)), "Scheduled False Unschedulable Scheduling is blocked")


CPU = gpu_node("c", None)
FREE = [gpu_node("g"), CPU]
OTHER_OS = [labelled(gpu_node("w"), **{"kubernetes.io/os": "windows"})]
NO_LINUX = "does not match the nodeSelector kubernetes.io/os=linux"
TERMS = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]
AFFINITY = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}}
UNSELECTED = [gpu_node("g"), labelled(gpu_node("c", None), pool="a")]
CORRECT = f"correct {FIELD}.nodeSelector or {FIELD}.affinity.nodeAffinity, or engine.nodeSelector or gpuEngines.node"
WEB, WEB_TAINT, MASTER = tainted("pool", "web"), taint("pool", "web"), taint(CONTROL_PLANE)
TAINTED = tainted("nvidia.com/gpu", "present")
NO_SLICE = f"1 Insufficient {SLICES}, {tainted('mig', 'yes')}"
SLICED = [gpu_node("g", "2", SLICES, taints=[taint("mig", "yes")]), CPU]
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
VOLUMES = [
    {"name": "model", "persistentVolumeClaim": {"claimName": "models"}},
    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
    {"name": "tmp", "emptyDir": {}},
]
SMALL = [gpu_node("small", "2"), gpu_node("tainted", taints=[GPU_TAINT]), gpu_node("cordoned", unschedulable=True)]
EXCLUDED = "node cordoned (8) is cordoned, node tainted (8) has the untolerated taint nvidia.com/gpu=present:NoSchedule"


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        # only GPUs are missing
        (of("2 Insufficient nvidia.com/gpu", FREE), "InsufficientGPU the largest node has 8, not all free; they are"),
        (of(NO_GPU, [CPU]), f"InsufficientGPU {NO_NODE}: add a node with GPUs, or install their device plugin"),
        (of(f"{NO_GPU}, {WEB}", [gpu_node("g"), gpu_node("c", None, taints=[WEB_TAINT])]), "InsufficientGPU busy now"),
        (of(f"{NO_GPU}, {UNNAMED}", [gpu_node("g"), gpu_node("c", None, taints=[MASTER])]), "InsufficientGPU busy now"),
        # The scheduler's message precedes newer taints of nodes, which make it retry.
        (of(NO_GPU, [gpu_node("g", taints=[GPU_TAINT])]), "InsufficientGPU busy"),
        (of(NO_GPU, [gpu_node("g", unschedulable=True)]), "InsufficientGPU busy"),
        # nodes that exclude the pod
        (of(f"{NO_GPU}, {WEB}"), "Unschedulable add a toleration of pool ... !busy"),
        (
            of("1 Insufficient memory, 2 Insufficient nvidia.com/gpu", [gpu_node("g1"), gpu_node("g2"), CPU]),
            "InsufficientGPU ^1 Insufficient memory: lower spec.resources.requests.memory ... !busy ... needs 1 "
            "nvidia.com/gpu and the largest node that it may run on has 8, not all free",
        ),
        *((of(f"{NO_GPU}, {UNMATCHED}", UNSELECTED, podTemplate={"spec": chosen}),
           f"Unschedulable {CORRECT} ... node g (8) does not match the ... !busy")
          for chosen in ({"nodeSelector": {"pool": "a"}}, {"affinity": {"nodeAffinity": AFFINITY}})),
        (
            of(f"{NO_GPU}, {TAINTED}, 1 node(s) were unschedulable", SMALL, parallelism={"tensor": 4}),
            f"InsufficientGPU ^{TAINTED}: add a toleration ... {EXCLUDED} ... "
            "needs 4 nvidia.com/gpu and the largest node that it may run on has 2: it never fits",
        ),
        (of(f"{NO_GPU}, {tainted('node.kubernetes.io/unreachable')}", [gpu_node("small", "1"), lost("lost")],
            parallelism={"tensor": 2}),
         "InsufficientGPU node that it may run on has 1: it never fits ... node lost (8) is not Ready"),
        (of(NO_SLICE, SLICED, gpu={"resourceName": SLICES}), f"Unschedulable toleration of mig ... needs 1 {SLICES}"),
        (of(NO_SLICE, SLICED), "Unschedulable spec.gpu.resourceName"),
        (of(f"{NO_GPU}, {UNMATCHED}", [CPU, *OTHER_OS]), f"Unschedulable {CORRECT} ... node w (8) {NO_LINUX}"),
        # control plane nodes are left out where there are other reasons
        (of(f"1 Insufficient memory, {tainted(CONTROL_PLANE)}"), "Unschedulable ^1 Insufficient memory: ... !control"),
        # taints that others set temporarily
        (of(tainted("ToBeDeletedByClusterAutoscaler")), "Unschedulable about to remove the node ... !tolerations"),
        (of(tainted("node.cilium.io/agent-not-ready")), "Unschedulable the node is still starting ... !tolerations"),
        (of(UNNAMED), "Unschedulable tolerations of the taints that kubectl describe node lists"),
        # reasons without a fix are quoted
        (of("1 NodeUnfitPod"), "Unschedulable ^0/1 nodes are available: 1 NodeUnfitPod"),
        # other services and messages
        (of(WEB, gpu=None), f"Unschedulable {FIELD}.tolerations ... !gpuEngines"),
        (observe_pod(unschedulable("no nodes available to schedule pods"), None),
         "Unschedulable the cluster has no node"),
        (observe_pod(unschedulable("Scheduling is blocked due to non-empty scheduling gates"), None),
         f"Unschedulable {FIELD}.schedulingGates"),
        (observe_pod(unschedulable('resourceclaim "gpu" not found'), None), "ResourceClaimNotFound ResourceClaim gpu"),
        (observe_pod(unschedulable('could not find ResourceClaim "gpu"'), None), "ResourceClaimNotFound create it"),
        (of("waiting for resource claim controller"), f"Unschedulable {FIELD}.resourceClaims"),
        (observe_pod(unschedulable("running PreBind plugin: binding volumes: timed out"), None),
         "Unschedulable ^running PreBind plugin: binding volumes: timed out"),
        (observe_pod(unschedulable(f"0/1 nodes are available: {UNBOUND}."), None, pod_spec={"volumes": VOLUMES}),
         "PersistentVolumeClaimUnbound no volume yet: models, demo-p1-scratch; "),
    ],
)  # fmt: skip
def test_the_conditions_of_a_pod_without_a_node(observed: Observed, expected: str) -> None:
    check_scheduled(observed, expected)


@pytest.mark.parametrize(
    ("reason", "node", "says"),
    [
        (UNNAMED, {"taints": [GPU_TAINT]}, TOLERATE),
        (TAINTED, {"taints": [GPU_TAINT]}, TOLERATE),
        ("1 node(s) were unschedulable", {"unschedulable": True}, "kubectl uncordon g makes"),
        *((tainted(key), {"taints": [taint(key)]}, says)
          for key, says in (("node.kubernetes.io/unreachable", "the node is not Ready"),
                            ("node.kubernetes.io/disk-pressure", "the node's disk is full"),
                            (CONTROL_PLANE, f"add a worker node, or tolerate {CONTROL_PLANE}"))),
    ],
)  # fmt: skip
def test_a_node_with_gpus_that_excludes_the_pod_is_not_called_busy(reason: str, node: Obj, says: str) -> None:
    observed = of(f"{NO_GPU}, {reason}", [gpu_node("g", **node), CPU])
    quoted = f"(0/2 nodes are available: {NO_GPU}, {reason})"
    quoted = f"{NO_NODE}; not counted with nvidia.com/gpu: node g (8) ... {quoted}"
    check_scheduled(observed, f"Unschedulable ^{reason} ... {says} ... !busy", quoted)


@pytest.mark.parametrize(
    ("reason", "says"),
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
        ("1 node(s) didn't match pod topology spread constraints", f"{FIELD}.topologySpreadConstraints"),
        ("1 node(s) didn't match pod anti-affinity rules", f"{FIELD}.affinity.podAntiAffinity"),
        ("1 node(s) didn't satisfy existing pods anti-affinity rules", "spec.podTemplate.metadata.labels"),
        ("1 node(s) didn't match pod affinity rules", f"{FIELD}.affinity.podAffinity"),
        ("1 cannot allocate all claims", f"{FIELD}.resourceClaims"),
    ],
)
def test_a_node_that_is_short_of_something_else_is_not_called_busy(reason: str, says: str) -> None:
    """The GPUs of one node are free. The message counts the other node as one without GPUs."""
    for reasons, nodes in ((f"{NO_GPU}, {reason}", FREE), (reason, FREE[:1])):
        check_scheduled(of(reasons, nodes), f"Unschedulable ^{reason}: ... {says} ... !busy")


@pytest.mark.parametrize(
    ("taints", "says"),
    [
        (["node.kubernetes.io/memory-pressure"], "the node is short of memory"),
        (["node.kubernetes.io/unreachable"], "the node is not Ready"),
        (["pool", "a"], f"toleration of a to {FIELD}.tolerations"),
        ([CONTROL_PLANE], f"tolerate {CONTROL_PLANE}"),
    ],
)
def test_taints_that_the_message_does_not_name_are_read_from_the_nodes(taints: list[str], says: str) -> None:
    nodes = [gpu_node("g", taints=[taint(key) for key in taints]), gpu_node("c", None, taints=[taint("web")])]
    for reasons in (f"{NO_GPU}, {UNNAMED}", UNNAMED):
        check_scheduled(of(reasons, nodes), f"Unschedulable {says} ... !toleration of web")


def test_a_tainted_node_is_not_called_busy_in_a_rollout() -> None:
    surge = pod("unschedulable_gpu")
    surge["status"]["conditions"][0]["message"] = f"0/2 nodes are available: {NO_GPU}, {WEB}."
    nodes = [gpu_node("old", "4"), gpu_node("new", "4", taints=[WEB_TAINT])]
    found = judge(*reconcile("surging", "ready", surge, nodes=nodes))
    says = f"^{WEB}: add a toleration of pool ... free a GPU or set maxSurge 0, maxUnavailable 1"
    check(found, f"RolloutComplete False InsufficientGPU {says} ... !busy")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True), ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False), ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False), ({"key": "other", "operator": "Exists"}, False),
    ],
)  # fmt: skip
def test_tolerations_are_those_of_the_scheduler(toleration: Obj, tolerated: bool) -> None:
    assert is_tolerated(taint("k", "v"), [toleration]) is tolerated
    assert is_tolerated(taint("k", "v", "PreferNoSchedule"), [])
    assert not is_tolerated(taint("k", "v", "NoExecute"), [])


@pytest.mark.parametrize(
    ("key", "operator", "values", "matches"),
    [
        ("a", "In", ["1", "2"], True), ("a", "NotIn", ["1"], False), ("b", "NotIn", ["1"], True),
        ("a", "Exists", None, True), ("b", "Exists", None, False), ("b", "DoesNotExist", None, True),
        ("a", "Gt", ["0"], True), ("a", "Gt", ["1"], False), ("a", "Lt", ["1"], False),
        ("metadata.name", "In", ["n"], True), ("metadata.name", "In", ["m"], False),
    ],
)  # fmt: skip
def test_required_affinity_is_that_of_the_scheduler(key: str, operator: str, values: Any, matches: bool) -> None:
    expression = {"key": key, "operator": operator, **({"values": values} if values else {})}
    terms = [{}, {"matchFields" if key == "metadata.name" else "matchExpressions": [expression]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    node = {"metadata": {"name": "n", "labels": {"a": "1"}}}
    allowed, excluded = split_nodes({"spec": {"affinity": {"nodeAffinity": required}}}, [node])
    assert (len(allowed), len(excluded)) == ((1, 0) if matches else (0, 1))

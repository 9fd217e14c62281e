"""Parses kube-scheduler's message about an unschedulable pod, and adds the field to change or the command to run.

The reasons are those of the scheduler's filter plugins (kubernetes/pkg/scheduler/framework/plugins).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from unmask_operator.status.messages import rows
from unmask_operator.status.pods.terminations import POD_SPEC
from unmask_operator.status.scheduling.node_fit import CONTROL_PLANE_TAINTS, CORDON_TAINT, ExcludedNode

_PREFIX = re.compile(r"\d+/\d+ nodes are available: ")
_NEXT_REASON = re.compile(r", (?=\d+ )")
_COUNTED = re.compile(r"(\d+) (.+)", re.DOTALL)
_INSUFFICIENT = re.compile(r"Insufficient (\S+)")
_TAINT = re.compile(r"had (?:untolerated )?taint(?:\(s\)|s)?(?: \{([^:}]*))?")
_NODE_AFFINITY = re.compile(r"didn't match (Pod's |scheduler-enforced )?node (affinity|selector)")
_NODE_RULE = re.compile(r"were unschedulable|had unknown conditions|didn't match the requested node name")
_MAX_NAMED = 3  # nodes or taints


@dataclass(frozen=True)
class SchedulerReason:
    """One reason of the scheduler's message, with its original text."""

    count: int | None  # number of nodes; None: the message has no count
    text: str

    def __str__(self) -> str:
        return self.text if self.count is None else f"{self.count} {self.text}"

    @property
    def resource(self) -> str | None:
        """The resource that the nodes lack; None for other reasons."""
        found = _INSUFFICIENT.fullmatch(self.text)
        return found[1] if found else None

    @property
    def taint_key(self) -> str | None:
        """The key of an untolerated taint; "" for taints that the message does not name, None for other reasons."""
        found = _TAINT.search(self.text)
        return (found[1] or "").strip() if found else None

    @property
    def is_control_plane(self) -> bool:
        return self.taint_key in CONTROL_PLANE_TAINTS

    @property
    def is_node_rule(self) -> bool:
        """Whether a taint, label or state of the nodes excludes the pod, independent of other pods."""
        return any(rule.search(self.text) for rule in (_TAINT, _NODE_AFFINITY, _NODE_RULE))


def parse_reasons(sentence: str) -> list[SchedulerReason]:
    """Splits the message's first sentence (``0/5 nodes are available: 2 Insufficient cpu, 3 ...``) into its reasons."""
    prefix = _PREFIX.match(sentence)
    if prefix is None:
        return [SchedulerReason(None, sentence.strip())]
    reasons = []
    for part in _NEXT_REASON.split(sentence[prefix.end() :].strip().removesuffix(".")):
        counted = _COUNTED.fullmatch(part)
        reasons.append(SchedulerReason(int(counted[1]), counted[2]) if counted else SchedulerReason(None, part))
    return reasons


def explain(reasons: Sequence[SchedulerReason], *, has_gpu: bool, excluded: Sequence[ExcludedNode] = ()) -> str:
    """Returns the reasons, each with its fix if one is known.

    Args:
        reasons: the reasons in the scheduler's order.
        has_gpu: whether the service has spec.gpu, so that the chart's gpuEngines apply to its pods.
        excluded: the nodes that do not accept the pod; empty if nodes cannot be read.
    """
    explained = []
    for reason in reasons:
        fix = _fix(reason, has_gpu, excluded)
        explained.append(f"{reason}: {fix}" if fix else str(reason))
    return "; ".join(explained)


def has_fix(reason: SchedulerReason) -> bool:
    return _fix(reason, has_gpu=False, excluded=()) is not None


def _fix(reason: SchedulerReason, has_gpu: bool, excluded: Sequence[ExcludedNode]) -> str | None:
    if (key := reason.taint_key) is not None:
        return _fix_taint(key, has_gpu, excluded)
    if resource := reason.resource:
        return _fix_resource(resource)
    if "were unschedulable" in reason.text:
        return _uncordon(excluded)
    if _NODE_AFFINITY.search(reason.text):
        chart = "engine.nodeSelector or gpuEngines.nodeSelector" if has_gpu else "engine.nodeSelector"
        return f"correct {POD_SPEC}.nodeSelector or {POD_SPEC}.affinity.nodeAffinity, or {chart} of the chart"
    return next((fix for pattern, fix in _FIXES.items() if re.search(pattern, reason.text)), None)


def _uncordon(excluded: Sequence[ExcludedNode]) -> str:
    names = sorted(node.name for node in excluded if node.cordoned)[:_MAX_NAMED]
    return f"kubectl uncordon {' '.join(names) or 'NODE'} makes cordoned nodes schedulable again"


def _fix_taint(key: str, has_gpu: bool, excluded: Sequence[ExcludedNode]) -> str:
    if key == CORDON_TAINT:
        return _uncordon(excluded)
    if fix := next((fix for pattern, fix in _TAINT_FIXES.items() if re.fullmatch(pattern, key)), None):
        return fix.replace("TAINT", key)
    if not key and excluded:
        return _fix_unnamed_taints(has_gpu, excluded)
    named = f"a toleration of {key}" if key else "tolerations of the taints that kubectl describe node lists"
    return _tolerate(named, has_gpu)


def _fix_unnamed_taints(has_gpu: bool, excluded: Sequence[ExcludedNode]) -> str:
    """Returns the fixes for the taints of the nodes. Kubernetes 1.34 and later omit the taints from the message."""
    keys = sorted({key for node in excluded for key in node.taint_keys} - {CORDON_TAINT})
    keys = [key for key in keys if key not in CONTROL_PLANE_TAINTS] or keys
    if not keys:
        return _tolerate("tolerations of the taints that kubectl describe node lists", has_gpu)
    return "; ".join(dict.fromkeys(_fix_taint(key, has_gpu, ()) for key in keys[:_MAX_NAMED]))


def _tolerate(named: str, has_gpu: bool) -> str:
    chart = " or to gpuEngines.tolerations of the chart" if has_gpu else ""
    return f"add {named} to {POD_SPEC}.tolerations{chart}"


def _fix_resource(resource: str) -> str:
    fix = next(fix for pattern, fix in _RESOURCE_FIXES.items() if re.fullmatch(pattern, resource))
    return fix.replace("RESOURCE", resource)


# Resources that a node lacks (regular expressions), and the fixes.
_RESOURCE_FIXES = rows(f"""
cpu|memory: lower spec.resources.requests.RESOURCE (default: the limit), or add a larger node
ephemeral-storage: lower spec.modelCache.emptyDir.sizeLimit or spec.resources.requests.ephemeral-storage, or add a node
    with a larger disk
hugepages-.*: lower spec.resources.limits.RESOURCE, or reserve more of them on the nodes
.*: add a node that has RESOURCE, or correct what requests it: spec.gpu.resourceName, spec.resources or {POD_SPEC}
""")
# Taints (regular expressions) that a toleration would be the wrong fix for: those of control planes, and those that
# Kubernetes, cloud providers and autoscalers set temporarily.
_TAINT_FIXES = rows(rf"""
{"|".join(sorted(CONTROL_PLANE_TAINTS))}: add a worker node, or tolerate TAINT in {POD_SPEC}.tolerations to use control
    plane nodes
node.kubernetes.io/(not-ready|unreachable|out-of-service): the node is not Ready; kubectl describe node says why
node.kubernetes.io/memory-pressure: the node is short of memory; remove pods there or add a node
node.kubernetes.io/disk-pressure: the node's disk is full; free space there or add a node
node.kubernetes.io/pid-pressure: the node is short of process ids; remove pods there or add a node
node.kubernetes.io/network-unavailable: the node's network is not set up; check the network plugin
node.cloudprovider.kubernetes.io/uninitialized: the cloud provider has not set up the node yet
node.cloudprovider.kubernetes.io/shutdown: the node is shut down; start it or add a node
(ToBeDeletedBy|DeletionCandidateOf)ClusterAutoscaler|karpenter.sh/disrupt(ed|ion): an autoscaler is about to remove
    the node; wait for another one or add one
karpenter.sh/unregistered: the node is still starting
.*/(agent-)?not-ready: the node is still starting; if that does not end, check the agent that removes the taint
""")
# Reasons of plugins that do not check taints, node affinity or resources (regular expressions), and their fixes.
_FIXES = rows(rf"""
Too many pods: the nodes run their maximum number of pods; remove pods there or add a node
had unknown conditions: the node is not Ready; kubectl describe node says why
requested node name: correct {POD_SPEC}.nodeName
free ports: another pod has the host port; remove hostPort and hostNetwork from {POD_SPEC}
volume node affinity conflict|no available volume zone: the volume of a PersistentVolumeClaim is in a zone or on a node
    that the pod may not use; use a claim in a zone of the pod's nodes, or correct {POD_SPEC}.nodeSelector
available persistent volumes to bind: no PersistentVolume fits the claim; kubectl describe pvc says why
non-existent pv: the PersistentVolume of a claim does not exist; create the claim again
enough free storage: the storage of the claim's class is full; use another storage class or free some
max volume count|no available disk: the node has its maximum number of volumes; remove pods or add a node
topology spread constraints: relax {POD_SPEC}.topologySpreadConstraints (whenUnsatisfiable: ScheduleAnyway), or add a
    node
existing pods'? anti-affinity: the podAntiAffinity of a pod on the node excludes this pod; change
    spec.podTemplate.metadata.labels, or add a node
pod anti-affinity: relax {POD_SPEC}.affinity.podAntiAffinity, or add a node
pod affinity: relax {POD_SPEC}.affinity.podAffinity
allocate all claims|(?i:resource ?claim): no free device satisfies the ResourceClaims of spec.gpu or
    {POD_SPEC}.resourceClaims; kubectl describe resourceclaim says which
no nodes available to schedule pods: the cluster has no node; add one
scheduling gates: a controller has yet to remove the pod's scheduling gates; check it, or remove
    {POD_SPEC}.schedulingGates
""")

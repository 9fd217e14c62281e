"""Decides which nodes a pod may run on, by the rules of kube-scheduler's node filters.

Resources, ports, volumes and other pods are not considered, because the scheduler reports them itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask_operator.objects import Obj, section

CORDON_TAINT = "node.kubernetes.io/unschedulable"
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
CONTROL_PLANE_TAINTS = frozenset({"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"})
_NO_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class ExcludedNode:
    """A node that does not accept the pod."""

    node: Obj
    reason: str  # a predicate after the node's name: "is cordoned"
    scheduler_text: str  # the scheduler's reason for it
    cordoned: bool = False
    taint_keys: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def is_control_plane(self) -> bool:
        return not CONTROL_PLANE_TAINTS.isdisjoint(self.taint_keys)


def split_nodes(pod: Obj, nodes: Sequence[Obj], *, ignore_state: bool = False) -> tuple[list[Obj], list[ExcludedNode]]:
    """Returns the nodes that accept the pod, and those that do not.

    With `ignore_state`, taints, cordons and NotReady nodes do not exclude the pod.
    """
    allowed, excluded = [], []
    for node in nodes:
        found = (None if ignore_state else _state_exclusion(pod, node)) or _placement_exclusion(pod, node)
        if found is None:
            allowed.append(node)
        else:
            excluded.append(found)
    return allowed, excluded


def _state_exclusion(pod: Obj, node: Obj) -> ExcludedNode | None:
    node_spec, tolerations = section(node, "spec"), section(pod, "spec").get("tolerations") or ()
    taints = [taint for taint in node_spec.get("taints") or () if not is_tolerated(taint, tolerations)]
    keys = tuple(str(taint.get("key")) for taint in taints)
    cordon = {"key": CORDON_TAINT, "effect": "NoSchedule"}
    if node_spec.get("unschedulable") and not is_tolerated(cordon, tolerations):
        return ExcludedNode(node, "is cordoned", "node(s) were unschedulable", cordoned=True)
    ready = [c for c in section(node, "status").get("conditions") or () if c.get("type") == "Ready"]
    if any(c.get("status") != "True" for c in ready):
        text = "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
        return ExcludedNode(node, "is not Ready", text, taint_keys=keys or (NOT_READY_TAINT,))
    if taints:
        described = ", ".join(_describe_taint(taint) for taint in taints)
        text = f"node(s) had untolerated taint {{{keys[0]}: {taints[0].get('value') or ''}}}"
        return ExcludedNode(node, f"has the untolerated taint {described}", text, taint_keys=keys)
    return None


# Every kubelet sets these labels. For a node without them the scheduler's own reason is reported.
_SET_BY_KUBELETS = ("kubernetes.io/os", "kubernetes.io/arch")


def _placement_exclusion(pod: Obj, node: Obj) -> ExcludedNode | None:
    pod_spec = section(pod, "spec")
    labels = section(node, "metadata", "labels")
    selector = section(pod_spec, "nodeSelector")
    compared = {key: value for key, value in selector.items() if key in labels or key not in _SET_BY_KUBELETS}
    if mismatched := sorted(f"{key}={value}" for key, value in compared.items() if labels.get(key) != value):
        return ExcludedNode(node, f"does not match the nodeSelector {', '.join(mismatched)}", _NO_AFFINITY)
    affinity = section(pod_spec, "affinity", "nodeAffinity")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if isinstance(required, dict) and not _matches_any_term(required.get("nodeSelectorTerms") or (), node):
        return ExcludedNode(node, "does not match the required node affinity", _NO_AFFINITY)
    return None


def is_tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Returns whether a pod with these tolerations may be scheduled despite the taint."""
    if taint.get("effect") not in _BLOCKING_EFFECTS:
        return True
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return (toleration.get("value") or "") == (taint.get("value") or "")


def _describe_taint(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def _matches_any_term(terms: Iterable[Mapping[str, Any]], node: Obj) -> bool:
    labels = section(node["metadata"], "labels")
    fields = {"metadata.name": node["metadata"]["name"]}
    for term in terms:
        expressions = term.get("matchExpressions") or ()
        field_expressions = term.get("matchFields") or ()
        if not expressions and not field_expressions:
            continue  # an empty term matches no node
        if all(_matches(e, labels) for e in expressions) and all(_matches(e, fields) for e in field_expressions):
            return True
    return False


def _matches(requirement: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    operator, values = requirement.get("operator"), list(requirement.get("values") or ())
    value = labels.get(requirement.get("key", ""))
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    try:
        number, bound = int(str(value)), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound

"""Explains a pod without a GPU: how many it needs, which nodes it may run on, and whether GPUs may become free."""

from collections.abc import Sequence
from dataclasses import dataclass

from unmask_operator.api.pod import DEFAULT_GPU
from unmask_operator.objects import Obj, quantity, section
from unmask_operator.status.condition import Condition, false
from unmask_operator.status.scheduling.node_fit import ExcludedNode, split_nodes
from unmask_operator.status.scheduling.scheduler_message import SchedulerReason, explain, parse_reasons
from unmask_operator.status.status_input import StatusInput

REPLACE_HINT = "set maxSurge 0, maxUnavailable 1 in spec.rolloutStrategy"
HINT = f"free a GPU or {REPLACE_HINT}"
_MAX_NAMED_NODES = 3


@dataclass(frozen=True)
class _Capacity:
    """The GPUs of the nodes. It exists only if the operator may read nodes."""

    allowed: Sequence[int]  # allocatable GPUs of each node that the pod may run on
    excluded: Sequence[ExcludedNode]
    excluded_gpus: Sequence[tuple[ExcludedNode, int]]  # excluded nodes with GPUs, and their number

    @property
    def largest(self) -> int:
        return max(self.allowed, default=0)

    @property
    def relevant_excluded(self) -> Sequence[ExcludedNode]:
        """The excluded nodes with GPUs, or all excluded nodes if none has GPUs."""
        return [node for node, _ in self.excluded_gpus] or self.excluded

    def excluded_clause(self, resource: str) -> str:
        """Returns a clause with the nodes whose GPUs do not count, or ""."""
        if not self.excluded_gpus:
            return ""
        shown = [f"node {node.name} ({gpus}) {node.reason}" for node, gpus in self.excluded_gpus[:_MAX_NAMED_NODES]]
        more = len(self.excluded_gpus) - len(shown)
        return f"; not counted with {resource}: {', '.join(shown)}{f' and {more} more' if more else ''}"


def shortage(inputs: StatusInput, pod: Obj, sentence: str) -> Condition | None:
    """Returns the condition for a pod without a GPU, or None if the scheduler's message is about something else."""
    resource = gpu_resource(inputs)
    if resource is None:
        return None
    reasons = parse_reasons(sentence)
    short = [reason for reason in reasons if reason.resource == resource]
    if not short:
        return None
    others = [reason for reason in reasons if reason not in short]
    capacity = _capacity(inputs, pod, resource)
    if capacity and not others and capacity.largest == 0:
        # No node excluded the pod in the scheduler's last attempt, which precedes the current state of the nodes.
        capacity = _capacity(inputs, pod, resource, ignore_state=True)
    return _explain(inputs, pod, short[0], _relevant(others, capacity), capacity, sentence)


def relevant_excluded_nodes(inputs: StatusInput, pod: Obj) -> Sequence[ExcludedNode]:
    """Returns the nodes that do not accept the pod. For a GPU service only those with GPUs, if there are any."""
    capacity = _capacity(inputs, pod, gpu_resource(inputs) or "")
    return capacity.relevant_excluded if capacity else ()


def gpu_resource(inputs: StatusInput) -> str | None:
    """Returns the extended resource of the service's GPUs; None without spec.gpu, or if claims provide the GPUs."""
    gpu = inputs.spec.get("gpu")
    if not isinstance(gpu, dict) or gpu.get("deviceClassName") or gpu.get("resourceClaims"):
        return None
    return str(gpu.get("resourceName") or DEFAULT_GPU)


def _explain(
    inputs: StatusInput,
    pod: Obj,
    short: SchedulerReason,
    causes: Sequence[SchedulerReason],
    capacity: _Capacity | None,
    sentence: str,
) -> Condition:
    """Returns the condition for missing GPUs, with the nodes that are excluded or lack other resources."""
    resource = short.text.removeprefix("Insufficient ")
    need = _needed(pod, resource)
    needs = f"a pod needs {need} {resource}"
    if inputs.nodes > 1:
        needs = f"a group needs {inputs.nodes} nodes with {need} free {resource} each"
    hint = f"; the old pods still serve: {HINT}" if is_rolling(inputs) else ""
    alone = not causes and not (capacity and capacity.excluded_gpus)
    if capacity and not causes and need > capacity.largest:
        causes = list(dict.fromkeys(SchedulerReason(None, node.scheduler_text) for node, _ in capacity.excluded_gpus))
    nodes = capacity.relevant_excluded if capacity else ()
    start = f"{explain(causes, has_gpu=True, excluded=nodes)}; " if causes else ""
    wanted = f"{start}{needs}"
    if capacity is None:
        return false("InsufficientGPU" if alone else "Unschedulable", f"{wanted}{hint} ({sentence})")
    excluded, largest = capacity.excluded_clause(resource), capacity.largest
    if largest == 0:
        none = f"{wanted} and no node that it may run on has any{excluded}"
        if capacity.excluded_gpus:
            return false("Unschedulable", f"{none} ({sentence})")
        return false("InsufficientGPU", f"{none}: add a node with GPUs, or install their device plugin ({sentence})")
    counted = f"{wanted} and the largest node{'' if alone else ' that it may run on'} has {largest}"
    if need > largest:
        fix = "it never fits; lower spec.parallelism or add a larger node"
        return false("InsufficientGPU", f"{counted}: {fix}{excluded} ({sentence})")
    too_small = sum(gpus < need for gpus in capacity.allowed)
    if any(not cause.is_node_rule for cause in causes) and short.count is not None and short.count <= too_small:
        # The scheduler's count covers only the nodes with too few GPUs. The other nodes lack something else.
        return false("Unschedulable", f"{wanted}{excluded} ({sentence})")
    busy = "" if causes else "; they are busy now: free some or add a node"
    return false("InsufficientGPU", f"{counted}, not all free{hint or busy}{excluded} ({sentence})")


def _relevant(others: Sequence[SchedulerReason], capacity: _Capacity | None) -> list[SchedulerReason]:
    """Returns the reasons that exclude the pod from nodes with GPUs, as far as that is known."""
    if capacity is None or not any(node.is_control_plane for node, _ in capacity.excluded_gpus):
        others = [reason for reason in others if not reason.is_control_plane]
    if capacity is None or capacity.excluded_gpus or not all(reason.is_node_rule for reason in others):
        return list(others)
    # All nodes that exclude the pod are known, and none of them has GPUs.
    explained = sum(reason.count or 0 for reason in others) <= len(capacity.excluded)
    return [] if explained else list(others)


def is_rolling(inputs: StatusInput) -> bool:
    """Returns whether pods of an older template serve during a rollout."""
    return inputs.ready_pods > 0 and not inputs.rolled_out


def _needed(pod: Obj, resource: str) -> int:
    containers = section(pod, "spec").get("containers") or ()
    resources = (section(c, "resources") for c in containers)
    return sum(_count(section(r, "requests") | section(r, "limits"), resource) for r in resources)


def _count(amounts: Obj, resource: str) -> int:
    return int(quantity(amounts.get(resource)) or 0)


def _capacity(inputs: StatusInput, pod: Obj, resource: str, *, ignore_state: bool = False) -> _Capacity | None:
    """Returns the capacity, or None if nodes are not read."""
    if inputs.observed.nodes is None:
        return None
    allowed, excluded = split_nodes(pod, inputs.observed.nodes, ignore_state=ignore_state)
    counted = [(node, _allocatable(node.node, resource)) for node in sorted(excluded, key=lambda node: node.name)]
    with_gpus = [(node, gpus) for node, gpus in counted if gpus]
    return _Capacity([_allocatable(node, resource) for node in allowed], excluded, with_gpus)


def _allocatable(node: Obj, resource: str) -> int:
    return _count(section(node, "status", "allocatable"), resource)

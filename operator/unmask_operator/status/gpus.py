"""Too few GPUs: how many a pod needs, how many the largest node has, and whether waiting can help."""

import re

from unmask_operator.api.placement import DEFAULT_GPU
from unmask_operator.objects import Obj
from unmask_operator.state.drift import quantity
from unmask_operator.status.facts import Facts, section

HINT = "free a GPU or set maxSurge 0, maxUnavailable 1 in spec.rolloutStrategy"


def shortage(facts: Facts, pod: Obj, sentence: str) -> str | None:
    """The message about a pod that finds no GPU; None where the scheduler's sentence is about something else."""
    if not isinstance(facts.spec.get("gpu"), dict):
        return None
    resource = str(facts.spec["gpu"].get("resourceName") or DEFAULT_GPU)
    if not re.search(rf"Insufficient {re.escape(resource)}(?![\w/-]|\.\w)", sentence):  # not nvidia.com/gpu.shared
        return None
    rolling = facts.ready_pods > 0 and not facts.rolled_out
    hint = f"; the old pods serve on: {HINT}" if rolling else ""
    need, largest = _needed(pod, resource), _largest(facts, pod, resource)
    if largest is None:
        return f"a pod needs {need} {resource}{hint} ({sentence})"
    if largest == 0:
        return (
            f"a pod needs {need} {resource} and no node that it may run on has any: add a node with GPUs, or "
            f"install their device plugin ({sentence})"
        )
    if need > largest:
        return (
            f"a pod needs {need} {resource} and the largest node has {largest}: it never fits; lower "
            f"spec.parallelism or add a larger node ({sentence})"
        )
    free = hint or "; they are busy now: free some or add a node"
    return f"a pod needs {need} {resource} and the largest node has {largest}, not all free{free} ({sentence})"


def _needed(pod: Obj, resource: str) -> int:
    containers = section(pod, "spec").get("containers") or ()
    asked = (section(c, "resources") for c in containers)
    return sum(_count(section(a, "requests") | section(a, "limits"), resource) for a in asked)


def _count(amounts: Obj, resource: str) -> int:
    return int(quantity(amounts.get(resource)) or 0)


def _largest(facts: Facts, pod: Obj, resource: str) -> int | None:
    """Over the nodes that the pod's nodeSelector allows; None where nodes are not to be read."""
    if facts.observed.nodes is None:
        return None
    wanted = section(section(pod, "spec"), "nodeSelector").items()
    fitting = [node for node in facts.observed.nodes if wanted <= section(node["metadata"], "labels").items()]
    offers = (section(section(node, "status"), "allocatable") for node in fitting)
    return max((_count(offer, resource) for offer in offers), default=0)

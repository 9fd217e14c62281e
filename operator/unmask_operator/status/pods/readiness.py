"""Explains why a pod whose engine has started is not Ready, by the conditions of the pod."""

import re

from unmask_operator.objects import Obj
from unmask_operator.render.labels import MAIN
from unmask_operator.status.condition import Condition, false
from unmask_operator.status.pods.pod_status import (
    condition,
    is_live,
    is_ready,
    is_started,
    lost_node,
    name,
    restartable,
    silent_node,
)
from unmask_operator.status.pods.terminations import ended

_UNREADY_NAMES = re.compile(r"unready status: \[([^\]]*)\]")
PROBE_FAILED = "ReadinessProbeFailed"


def unready(pod: Obj) -> Condition | None:
    """Returns why a pod with a loaded model is not Ready, or None."""
    if not is_live(pod) or not is_started(pod) or is_ready(pod):
        return None
    if lost := lost_node(pod):
        return lost
    names = _unready_containers(pod)
    found = []
    if MAIN in names:
        found.append(false(PROBE_FAILED, pod=name(pod)))
    if others := [container for container in names if container != MAIN]:
        found.append(false("ContainersNotReady", _describe_containers(pod, others)))
    if pending := _pending_conditions(pod):
        found.append(false("ReadinessGatesNotReady", pod=name(pod), conditions=pending))
    if found:
        return false(found[0].reason, "; ".join(one.message for one in found))
    return _by_ready_condition(pod)


def _describe_containers(pod: Obj, names: list[str]) -> str:
    verb = "container {} of pod {} is" if len(names) == 1 else "containers {} of pod {} are"
    subject = f"{verb.format(', '.join(names), name(pod))} not Ready"
    status = pod.get("status") or {}
    containers = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    ends = {c["name"]: (c, (c.get("lastState") or {}).get("terminated")) for c in containers if c["name"] in names}
    known = [ended(pod, container, end).message for container, end in ends.values() if end]
    return f"{subject}; {'; '.join(known) or f'kubectl describe pod {name(pod)} says why'}"


def _unready_containers(pod: Obj) -> list[str]:
    """Returns the names of containers and sidecars that are not Ready."""
    status = pod.get("status") or {}
    sidecars = [c for c in status.get("initContainerStatuses") or () if c["name"] in restartable(pod)]
    containers = [*(status.get("containerStatuses") or ()), *sidecars]
    if names := [str(c["name"]) for c in containers if not c.get("ready")]:
        return names
    for kind in ("Ready", "ContainersReady"):
        listed = _UNREADY_NAMES.search(str(condition(pod, kind).get("message") or ""))
        if condition(pod, kind).get("status") != "True" and listed:
            return listed[1].split()
    return []


def _pending_conditions(pod: Obj) -> str:
    """Returns the conditions of spec.readinessGates that are not True, each with its reason and message."""
    described = []
    for entry in (pod.get("spec") or {}).get("readinessGates") or ():
        kind = str(entry.get("conditionType"))
        found = condition(pod, kind)
        if not found:
            described.append(f"condition {kind} is missing, its controller has not set it")
        elif found.get("status") != "True":
            why = ": ".join(str(found[member]) for member in ("reason", "message") if found.get(member))
            described.append(f"condition {kind} is {found.get('status')}{f' ({why})' if why else ''}")
    return "; ".join(described)


def _by_ready_condition(pod: Obj) -> Condition | None:
    ready, containers = condition(pod, "Ready"), condition(pod, "ContainersReady")
    if not ready:
        return None
    if why := ": ".join(str(ready[member]) for member in ("reason", "message") if ready.get(member)):
        return false(str(ready.get("reason") or "PodNotReady"), f"pod {name(pod)} is not Ready: {why}")
    if containers.get("status") != "False" and (pod.get("spec") or {}).get("nodeName"):
        # The node lifecycle controller sets Ready to False and leaves reason and message empty.
        return silent_node(pod, "NodeNotReady")
    return None

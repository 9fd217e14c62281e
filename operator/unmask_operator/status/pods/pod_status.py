"""Reads the status of pods, and explains why a pod does not start or is not Ready."""

import re
from collections.abc import Iterator
from datetime import datetime

from unmask_operator.objects import Obj, condition, is_ready, seconds, section
from unmask_operator.render.ca_bundle import INIT_CONTAINER
from unmask_operator.render.labels import MAIN
from unmask_operator.render.workload import progress_deadline
from unmask_operator.status.condition import Condition, false
from unmask_operator.status.pods import terminations

_OF_THE_NODES = re.compile(r"\d+/\d+ nodes are available: .*?(?=\.(\s|$))", re.DOTALL)
_LOST = ("NodeLost", "NodeStatusUnknown", "NodeNotReady", "NodeUnreachable")
NORMAL_WAITING_REASONS = {"ContainerCreating", "PodInitializing", ""}  # no error
# Waiting reasons of images. The kubelet alternates between ImagePullBackOff and the error.
_PULL_ERRORS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed")
_PULL_BACK_OFF = re.compile(r'Back-off pulling image "[^"]*"(: \w+: )?')  # the error follows, from Kubernetes 1.32 on
# Waiting reasons of a container that has ended before. The kubelet alternates between the two.
_RESTARTING = ("CrashLoopBackOff", "RunContainerError")
_UNREADY_NAMES = re.compile(r"unready status: \[([^\]]*)\]")
PROBE_FAILED = "ReadinessProbeFailed"


def name(pod: Obj) -> str:
    return str(pod["metadata"]["name"])


def is_live(pod: Obj) -> bool:
    """Returns whether the pod is pending or running, and not terminating."""
    is_over = section(pod, "status").get("phase") in ("Failed", "Succeeded")
    return not is_over and not pod["metadata"].get("deletionTimestamp")


def is_started(pod: Obj) -> bool:
    """Returns whether the startup probe of the engine has passed, so that the model is loaded."""
    return is_ready(pod) or any(bool(container.get("started")) for container in _main(pod))


def restarts(pod: Obj) -> int:
    """Returns the restart count of the engine's container."""
    return sum(int(container.get("restartCount") or 0) for container in _main(pod))


def runs(pod: Obj) -> bool:
    """Returns whether the engine's container runs."""
    return any("running" in section(container, "state") for container in _main(pod))


def started_at(pod: Obj) -> str | None:
    """Returns when the engine's container started, or None if it does not run."""
    return section(next(_main(pod), {}), "state", "running").get("startedAt")


def load_seconds(pod: Obj, now: datetime, reported: float = 0.0) -> float:
    """Returns the seconds from scheduling to Ready, or until `now` while the pod loads.

    After a restart of the engine the time counts from the restart. A pod that was unready and is Ready again has a
    later transition time, so the lower time that its engine `reported` counts. 0: the pod has no node or an error, or
    the value is not the time of a load.
    """
    started = started_at(pod)
    begin = started if restarts(pod) else condition(pod, "PodScheduled").get("lastTransitionTime")
    end = condition(pod, "Ready").get("lastTransitionTime") if is_ready(pod) else now.isoformat()
    if not (begin and end and is_scheduled(pod)) or trouble(pod):
        return 0.0
    load = seconds(begin, end)
    if reported and started:
        load = min(load, reported + seconds(begin, started))
    return load if 0 < load <= progress_deadline(pod) else 0.0


def is_scheduled(pod: Obj) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def unschedulable(pod: Obj) -> str | None:
    """Returns the scheduler's message for an unschedulable pod, or None."""
    found = condition(pod, "PodScheduled")
    if is_scheduled(pod) or found.get("status") != "False":
        return None
    sentence = str(found.get("message") or found.get("reason") or "")
    # Later sentences are about preemption. They repeat the reasons and change often.
    first = _OF_THE_NODES.match(sentence)
    return (first[0] if first else sentence).strip()


def is_unseen(pod: Obj) -> bool:
    """Returns whether no scheduler has handled a pod without a node. One that cannot place it sets a condition."""
    return is_live(pod) and not is_scheduled(pod) and not condition(pod, "PodScheduled")


def trouble(pod: Obj) -> Condition | None:
    """Returns why containers of the pod do not run or end, or None.

    The reason stays the same while the kubelet retries.
    """
    if is_ready(pod):
        return None
    if not is_started(pod) and (lost := lost_node(pod)):
        return lost
    for container in containers(pod):
        waiting = section(container, "state", "waiting")
        end = _end(pod, container)
        if end is not None and not container.get("ready") and not container.get("started"):
            return end  # a container that has started again is healthy
        if waiting.get("reason", "") not in NORMAL_WAITING_REASONS:
            return _waiting(container, waiting)
    return None


def over(pod: Obj) -> Condition | None:
    """Returns why a pod has failed (evicted, refused by its node), or None."""
    gone = section(pod, "status").get("phase") == "Failed" and not pod["metadata"].get("deletionTimestamp")
    return terminations.failed(pod) if gone else None


def lost_node(pod: Obj) -> Condition | None:
    """Returns the condition for a pod whose node does not respond, or None."""
    status, ready = section(pod, "status"), condition(pod, "Ready")
    reasons = (status.get("reason"), ready.get("reason"))
    reason = next((str(reason) for reason in reasons if reason in _LOST), None)
    if reason is None and status.get("phase") != "Unknown":
        return None
    message = status.get("message") or ready.get("message")
    return silent_node(pod, reason or "NodeLost", f": {message}" if message else "")


def silent_node(pod: Obj, reason: str, cause: str = "") -> Condition:
    """Returns the condition for a pod whose node does not respond."""
    node = section(pod, "spec").get("nodeName")
    fix = f"kubectl describe node {node} says why"
    return false(reason, f"node {node} of pod {name(pod)} does not answer{cause}; {fix}")


def deleted_from_lost_node(pod: Obj) -> str | None:
    """Returns a message for a pod that cannot be deleted because its node does not respond, or None."""
    evicted = condition(pod, "DisruptionTarget").get("reason") == "DeletionByTaintManager"
    if not pod["metadata"].get("deletionTimestamp") or not (evicted or lost_node(pod)):
        return None
    return f"pod {name(pod)} is being deleted, and its node {pod['spec'].get('nodeName')} does not answer"


def initializing(pod: Obj) -> str | None:
    """Returns a message for the init container of podTemplate that still runs, or None."""
    for container in section(pod, "status").get("initContainerStatuses") or ():
        serves = container["name"] in restartable(pod) and container.get("started")
        if "running" in section(container, "state") and not serves and container["name"] != INIT_CONTAINER:
            progress = "started" if container["name"] in restartable(pod) else "finished"
            return f"init container {container['name']} of pod {name(pod)} has not {progress}"
    return None


def restartable(pod: Obj) -> set[str]:
    """Returns the names of the sidecars: init containers that keep running."""
    return {c["name"] for c in section(pod, "spec").get("initContainers") or () if c.get("restartPolicy") == "Always"}


def _main(pod: Obj) -> Iterator[Obj]:
    """Yields the status of the engine's container if it exists."""
    return (c for c in section(pod, "status").get("containerStatuses") or () if c["name"] == MAIN)


def containers(pod: Obj) -> Iterator[Obj]:
    """Yields the status of each container, except completed init containers and Ready sidecars."""
    status = section(pod, "status")
    for container in status.get("initContainerStatuses") or ():
        if container.get("ready") or section(container, "state", "terminated").get("exitCode") == 0:
            continue
        yield container
    yield from status.get("containerStatuses") or ()


def _waiting(container: Obj, waiting: Obj) -> Condition:
    reason, message = str(waiting["reason"]), str(waiting.get("message") or "")
    if reason in _PULL_ERRORS:
        cause = _PULL_BACK_OFF.sub("", message, count=1)
        owner = "" if container["name"] == MAIN else f" of container {container['name']}"
        sentence = f"image {container.get('image', '')}{owner} cannot be pulled{f': {cause}' if cause else ''}"
        return false("ImagePullBackOff", sentence)
    return false(reason, f"container {container['name']} cannot start: {message or reason}")


def _end(pod: Obj, container: Obj) -> Condition | None:
    """Returns how the container last ended. A restart loop gives the same result while it runs and while it waits."""
    end = section(container, "state", "terminated") or section(container, "lastState", "terminated")
    waits_for = section(container, "state", "waiting").get("reason", "CrashLoopBackOff")
    restarts = waits_for in (*_RESTARTING, *NORMAL_WAITING_REASONS)
    return terminations.ended(pod, container, end) if end and restarts else None


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
    status = section(pod, "status")
    containers = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    ends = {c["name"]: (c, section(c, "lastState", "terminated")) for c in containers if c["name"] in names}
    known = [terminations.ended(pod, container, end).message for container, end in ends.values() if end]
    return f"{subject}; {'; '.join(known) or f'kubectl describe pod {name(pod)} says why'}"


def _unready_containers(pod: Obj) -> list[str]:
    """Returns the names of containers and sidecars that are not Ready."""
    status = section(pod, "status")
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
    for entry in section(pod, "spec").get("readinessGates") or ():
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
    if containers.get("status") != "False" and section(pod, "spec").get("nodeName"):
        # The node lifecycle controller sets Ready to False and leaves reason and message empty.
        return silent_node(pod, "NodeNotReady")
    return None

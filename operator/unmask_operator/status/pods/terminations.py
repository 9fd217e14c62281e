"""Explains terminated containers, failed pods and disrupted ones, and names the field to change.

Pods that failed or had to leave their node are reported by Events, because the pod that replaces one hides the cause.
"""

import re
import signal
from collections.abc import Collection, Iterable, Iterator

from unmask_operator.objects import Obj, condition, section
from unmask_operator.render.ca_bundle import INIT_CONTAINER
from unmask_operator.render.labels import MAIN, all_containers
from unmask_operator.status.condition import Condition, false
from unmask_operator.status.transitions import Event

POD_SPEC = "spec.podTemplate.spec"  # the field of the resource that overrides the pod
_START_ERRORS = ("StartError", "ContainerCannotRun")
_ORDINARY_REASONS = ("Error", "Completed", "")
_LOW_ON = re.compile(r"low on resource: ([\w-]+)")
_LARGEST_USER = re.compile(r"Container (\S+) was using")
_OVER_DISK_LIMIT = re.compile(r"Container (\S+) exceeded its local ephemeral storage limit")
_FULL_VOLUME = re.compile(r'EmptyDir volume "([^"]+)" exceeds')
_VOLUME_FIELDS = {"model-cache": "spec.modelCache.emptyDir.sizeLimit", "shm": "spec.sharedMemorySize"}


def container_path(pod: Obj, name: str) -> str:
    """Returns the path of a container in the resource's podTemplate."""
    spec, status = section(pod, "spec").get("initContainers"), section(pod, "status").get("initContainerStatuses")
    kind = "initContainers" if any(c["name"] == name for c in (*(spec or ()), *(status or ()))) else "containers"
    return f"{POD_SPEC}.{kind}[name={name}]"


def ended(pod: Obj, container: Obj, end: Obj) -> Condition:
    """Returns the condition for a terminated container.

    Args:
        pod: the pod, with its spec.
        container: the container's status.
        end: its `terminated` state.
    """
    name, reason, code = container["name"], str(end.get("reason") or ""), end.get("exitCode")
    if reason == "OOMKilled":
        return false("OOMKilled", _out_of_memory(pod, name))
    lines = [line.strip() for line in str(end.get("message") or "").splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""  # the engine's last line is its error
    if reason in _START_ERRORS:
        return false("CrashLoopBackOff", f"container {name} could not be started ({reason}){last}")
    details = [part for part in (_signal_name(code), "" if reason in _ORDINARY_REASONS else reason) if part]
    more = f" ({', '.join(details)})" if details else ""
    return false("CrashLoopBackOff", f"container {name} ended with exit code {code}{more}{last}")


def failed(pod: Obj) -> Condition:
    """Returns the condition for a pod in phase Failed."""
    status = section(pod, "status")
    disruption = condition(pod, "DisruptionTarget")
    ends = (section(c, "state", "terminated") for c in status.get("containerStatuses") or ())
    end: Obj = next((end for end in ends if str(end.get("reason") or "") not in _ORDINARY_REASONS), {})
    reason = str(status.get("reason") or end.get("reason") or "PodFailed")
    message = str(status.get("message") or disruption.get("message") or end.get("message") or "")
    fix = f"remove {POD_SPEC}.activeDeadlineSeconds" if reason == "DeadlineExceeded" else None
    if reason == "Evicted":
        fix = _fix_eviction(pod, message)
    sentence = f"pod {pod['metadata']['name']} failed: {message or reason}"
    return false(reason, f"{sentence.rstrip('. ')}; {fix}" if fix else sentence)


def departed(pods: Iterable[Obj]) -> dict[str, Obj]:
    """Returns the pods that failed or are disrupted, such as by preemption or the shutdown of a node, by uid."""
    return {pod["metadata"]["uid"]: pod for pod in pods if _has_failed(pod) or _disruption(pod)}


def departures(pods: Iterable[Obj], told: Collection[str]) -> Iterator[Event]:
    """Yields the Event of each departed pod whose uid was not told before.

    An eviction by the API, as in a drain, is a request of a person.
    """
    for uid, pod in departed(pods).items():
        if uid in told:
            continue
        cause, disruption = failed(pod), _disruption(pod)
        if _has_failed(pod):
            yield Event("Warning", cause.reason, cause.message)
        else:
            reason, node = str(disruption.get("reason") or "Disrupted"), section(pod, "spec").get("nodeName")
            kind = "Normal" if reason == "EvictionByEvictionAPI" else "Warning"
            yield Event(
                kind, reason, f"pod {pod['metadata']['name']} leaves node {node}: {disruption.get('message') or reason}"
            )


def preempted(pods: Iterable[Obj]) -> str:
    """Returns the name of a pod that the scheduler has removed for one of higher priority; "" if there is none."""
    gone = (pod for pod in pods if _disruption(pod).get("reason") == "PreemptionByScheduler")
    return next((str(pod["metadata"]["name"]) for pod in gone), "")


def _has_failed(pod: Obj) -> bool:
    return section(pod, "status").get("phase") == "Failed"


def _disruption(pod: Obj) -> Obj:
    found = condition(pod, "DisruptionTarget")
    return found if found.get("status") == "True" else {}


def _out_of_memory(pod: Obj, name: str) -> str:
    path = _resources_path(pod, name)
    found = next((c for c in all_containers(section(pod, "spec")) if c["name"] == name), None)
    if found is None or "memory" in section(found, "resources", "limits"):
        return f"container {name} was killed for using more memory than its limit; raise {path}.limits.memory"
    if "memory" in section(pod, "spec", "resources", "limits"):
        limit = f"{POD_SPEC}.resources.limits.memory"
        return f"container {name} was killed because the pod used more memory than its limit; raise {limit}"
    node = section(pod, "spec").get("nodeName")
    return (
        f"container {name} was killed because node {node} ran out of memory, and it has no memory limit; set "
        f"{path}.requests.memory to the memory that it needs, or use a node with more memory"
    )


def _fix_eviction(pod: Obj, message: str) -> str | None:
    if full := _FULL_VOLUME.search(message):
        return f"raise {_VOLUME_FIELDS.get(full[1], f'the sizeLimit of volume {full[1]} in {POD_SPEC}.volumes')}"
    if over := _OVER_DISK_LIMIT.search(message):
        return f"raise {_resources_path(pod, over[1])}.limits.ephemeral-storage"
    low_on, user = _LOW_ON.search(message), _LARGEST_USER.search(message)
    name = user[1] if user else MAIN
    if low_on is None:
        return None
    if low_on[1] == "memory":
        path = f"{_resources_path(pod, name)}.requests.memory"
        return f"set {path} to the memory that container {name} needs, or use a node with more memory"
    if low_on[1] == "ephemeral-storage" and name == MAIN:
        return "free disk space on the node, or request it for the pod with spec.modelCache.emptyDir.sizeLimit"
    if low_on[1] == "ephemeral-storage":
        path = f"{_resources_path(pod, name)}.requests.ephemeral-storage"
        return f"free disk space on the node, or set {path} to the space that container {name} needs"
    return f"free {low_on[1]} on the node, or use another node"


def _resources_path(pod: Obj, name: str) -> str:
    """Returns the field with a container's resources. The operator's init container has those of the engine."""
    return "spec.resources" if name in (MAIN, INIT_CONTAINER) else f"{container_path(pod, name)}.resources"


def _signal_name(code: object) -> str | None:
    """Returns the name of the signal for an exit code of 128 + number, or None."""
    return next((one.name for one in signal.Signals if code == 128 + one), None)

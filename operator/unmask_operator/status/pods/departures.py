"""Reports pods that failed or had to leave their node, because the pod that replaces them hides the cause."""

from collections.abc import Collection, Iterable, Iterator

from unmask_operator.objects import Obj
from unmask_operator.status.pods.pod_status import condition, name
from unmask_operator.status.pods.terminations import failed
from unmask_operator.status.transitions import Event


def departed(pods: Iterable[Obj]) -> dict[str, Obj]:
    """Returns the pods that failed or are disrupted, such as by preemption or the shutdown of a node, by uid."""
    return {pod["metadata"]["uid"]: pod for pod in pods if _has_failed(pod) or _disruption(pod)}


def events(pods: Iterable[Obj], told: Collection[str]) -> Iterator[Event]:
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
            reason, node = str(disruption.get("reason") or "Disrupted"), (pod.get("spec") or {}).get("nodeName")
            kind = "Normal" if reason == "EvictionByEvictionAPI" else "Warning"
            yield Event(kind, reason, f"pod {name(pod)} leaves node {node}: {disruption.get('message') or reason}")


def _has_failed(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") == "Failed"


def _disruption(pod: Obj) -> Obj:
    found = condition(pod, "DisruptionTarget")
    return found if found.get("status") == "True" else {}

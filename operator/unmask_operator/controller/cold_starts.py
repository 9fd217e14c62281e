"""Measures the time from a pod's creation until it is Ready for the first time, and the phases of that time."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from unmask_operator.objects import Key, Obj, condition, is_ready, serves
from unmask_operator.status.pods.pod_status import is_started, restarts, started_at

LOAD_PHASES = ("start", "download", "weights", "warmup")  # of the runtime's /startup


class ColdStarts:
    """Reports the times of each pod once, in seconds.

    A pod that is Ready when this process first sees it was reported by an earlier leader, unless it was created after
    `since`: a pod may become Ready between two calls of `observe`.
    """

    def __init__(
        self, observe: Callable[[float], None], observe_phase: Callable[[str, float], None], since: datetime
    ) -> None:
        self._observe = observe
        self._observe_phase = observe_phase
        self._since = since
        self._pending: dict[Key, dict[str, bool]] = {}  # by uid: whether the pod was never Ready
        self._load_phases: dict[Key, dict[str, dict[str, datetime]]] = {}  # by uid: when each phase was first seen

    def phase_reported(self, key: Key, uid: str, phase: str, now: datetime) -> None:
        """Notes the phase that a loading pod reported.

        Unknown phases are ignored, because pods are not trusted and each phase is a value of a label.
        """
        if phase in LOAD_PHASES:
            self._load_phases.setdefault(key, {}).setdefault(uid, {}).setdefault(phase, now)

    def observe(self, key: Key, pods: Sequence[Obj]) -> None:
        """Compares the pods of a resource with those of the previous call."""
        known, now = self._pending.pop(key, {}), dict[str, bool]()
        reported = self._load_phases.pop(key, {})
        for pod in filter(serves, pods):
            uid, created = pod["metadata"]["uid"], datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
            pending = known.get(uid, created >= self._since or not (is_ready(pod) or is_started(pod) or restarts(pod)))
            ready = condition(pod, "Ready").get("lastTransitionTime") if is_ready(pod) else None
            if pending and ready is not None:
                end = datetime.fromisoformat(ready)
                self._observe((end - created).total_seconds())
                for phase, seconds in phase_seconds(pod, reported.get(uid, {}), end).items():
                    self._observe_phase(phase, seconds)
            now[uid] = pending and ready is None
        if now:
            self._pending[key] = now
        if loading := {uid: phases for uid, phases in reported.items() if now.get(uid)}:
            self._load_phases[key] = loading


def phase_seconds(pod: Obj, reported: Mapping[str, datetime], ready: datetime) -> dict[str, float]:
    """Returns the seconds of each phase of a pod's start; none if its engine was restarted or has no start time.

    "scheduling" ends when the pod has a node, and "containers" when the engine's container starts. The phases of the
    runtime follow. A phase that no poll of ``/startup`` saw counts for the one before.

    Args:
        reported: When each phase of the runtime was first seen.
        ready: When the pod became Ready.
    """
    scheduled, started = condition(pod, "PodScheduled").get("lastTransitionTime"), started_at(pod)
    if restarts(pod) or not (scheduled and started):
        return {}
    begins = {
        "scheduling": datetime.fromisoformat(pod["metadata"]["creationTimestamp"]),
        "containers": datetime.fromisoformat(scheduled),
        "start": (start := datetime.fromisoformat(started)),
    }
    begins |= {phase: min(max(seen, start), ready) for phase, seen in reported.items() if phase != "start"}
    edges = [*sorted(begins.items(), key=lambda edge: edge[1]), ("ready", ready)]
    return {phase: (end - begin).total_seconds() for (phase, begin), (_, end) in pairwise(edges)}

"""Measures the time from a pod's creation until it is Ready for the first time."""

from collections.abc import Callable, Sequence
from datetime import datetime

from unmask_operator.objects import Key, Obj
from unmask_operator.status.pods.pod_status import condition, is_ready, is_started, restarts


class ColdStarts:
    """Reports the time of each pod once, in seconds.

    A pod that is Ready when this process first sees it was reported by an earlier leader, unless it was created after
    `since`: a pod may become Ready between two calls of `look`.
    """

    def __init__(self, observe: Callable[[float], None], since: datetime) -> None:
        self._observe = observe
        self._since = since
        self._coming: dict[Key, dict[str, bool]] = {}  # by uid: whether the pod was never Ready

    def look(self, key: Key, pods: Sequence[Obj]) -> None:
        """Compares the pods of a resource with those of the previous call."""
        known, now = self._coming.pop(key, {}), dict[str, bool]()
        for pod in pods:
            uid, created = pod["metadata"]["uid"], datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
            coming = known.get(uid, created >= self._since or not (is_ready(pod) or is_started(pod) or restarts(pod)))
            ready = condition(pod, "Ready").get("lastTransitionTime") if is_ready(pod) else None
            if coming and ready is not None:
                self._observe((datetime.fromisoformat(ready) - created).total_seconds())
            now[uid] = coming and ready is None
        if now:
            self._coming[key] = now

"""How long pods took from their creation until they were Ready for the first time."""

from collections.abc import Callable, Sequence
from datetime import datetime

from unmask_operator.objects import Key, Obj
from unmask_operator.status.pods.pod_status import condition, is_ready, is_started, restarts


class ColdStarts:
    """Tells each pod's time once, `observe`d in seconds. Of a pod that is Ready when this process first sees it an
    earlier leader told, unless it was created `since`: one may come up faster than anybody looks."""

    def __init__(self, observe: Callable[[float], None], since: datetime) -> None:
        self._observe = observe
        self._since = since
        self._coming: dict[Key, dict[str, bool]] = {}  # pods by uid: whether they have yet to be Ready

    def look(self, key: Key, pods: Sequence[Obj]) -> None:
        """At the pods of a service as they are now."""
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

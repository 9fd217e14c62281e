"""How long pods took from their creation until they were Ready for the first time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from unmask_operator.objects import Key, Obj
from unmask_operator.status.pods import condition, is_ready, is_started, restarts


class ColdStarts:
    """Tells each pod's time once, `observe`d in seconds. A pod that was Ready before this process first saw its
    service is not told of: an earlier leader did so."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._coming: dict[Key, set[str]] = {}  # uids of pods that have not been Ready yet

    def look(self, key: Key, pods: Sequence[Obj]) -> None:
        """At the pods of a service as they are now."""
        known, coming = self._coming.pop(key, set[str]()), set[str]()
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if is_ready(pod):
                since = condition(pod, "Ready").get("lastTransitionTime")
                if uid in known and since is not None:
                    self._observe((_time(since) - _time(pod["metadata"]["creationTimestamp"])).total_seconds())
            elif uid in known or not (is_started(pod) or restarts(pod)):
                coming.add(uid)
        if coming:
            self._coming[key] = coming


def _time(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)

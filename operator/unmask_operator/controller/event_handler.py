"""Updates the cache with objects of lists and watches, and enqueues their resources."""

from collections.abc import Callable, Set

from unmask_operator.kinds import DLMS, PODS, ApiKind
from unmask_operator.kube.cache import Cache
from unmask_operator.objects import Key, Obj
from unmask_operator.status.pods.pod_status import is_ready

# Children and pods change in bursts. One reconcile and one status write serve a burst. The pause is shorter if it ends
# with a Ready pod, which users wait for.
DEBOUNCE_SECONDS = 1.0
DEBOUNCE_READY_SECONDS = 0.25


class EventHandler:
    """Updates the cache and enqueues resources.

    Args:
        cache: The cache.
        enqueue: Called with a resource's key and the seconds until its reconcile.
    """

    def __init__(self, cache: Cache, enqueue: Callable[[Key, float], None]) -> None:
        self._cache = cache
        self._enqueue = enqueue

    def on_event(self, kind: ApiKind, change: str | None, obj: Obj) -> None:
        """Updates the cache with one object and enqueues its resource.

        Args:
            kind: The object's kind.
            change: ADDED, MODIFIED or DELETED from a watch; None for an object of a list.
            obj: The object.
        """
        if change == "DELETED":
            key = self._cache.delete(kind, obj)
        else:
            key = self._cache.put(kind, obj, answered=change is None)
        if key is not None:
            self._enqueue(key, debounce_seconds(kind, obj))

    def on_list(self, kind: ApiKind, namespace: str | None, found: Set[tuple[Key, str]], version: int) -> None:
        """Removes objects that a complete list did not contain, and enqueues their resources.

        Args:
            kind: The kind that was listed.
            namespace: The listed namespace; None: all.
            found: Names and uids of the list's objects.
            version: The list's resource version.
        """
        for key in self._cache.replace(kind, namespace, found, version):
            self._enqueue(key, 0.0)

    def enqueue_all(self) -> None:
        """Enqueues every resource."""
        for key, _ in self._cache.resources():
            self._enqueue(key, 0.0)


def debounce_seconds(kind: ApiKind, obj: Obj) -> float:
    """Returns the debounce pause after a change of an object, in seconds; 0 for the resource itself."""
    if kind is DLMS:
        return 0.0
    return DEBOUNCE_READY_SECONDS if kind is PODS and is_ready(obj) else DEBOUNCE_SECONDS

"""Fills the cache with the events of watches, and by a resync, which lists every kind and replaces its content.

kopf's watches leave gaps: after a watch restarts, nothing reports the objects that were deleted in the meantime.
"""

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import NoReturn

from unmask_operator import kinds
from unmask_operator.kinds import DLMS, PODS, ApiKind
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.metrics import Metrics
from unmask_operator.objects import SERVICE_LABEL, Key, Obj, is_ready, section
from unmask_operator.plan.optional_kinds import MISSING_CRD
from unmask_operator.render.autoscaling import OWN_SLICES
from unmask_operator.settings import Settings
from unmask_operator.status.conditions.basic import API_ERROR
from unmask_operator.status.conditions.route_ready import TYPE as ROUTE_READY
from unmask_operator.status.conditions.route_ready import WAITING

# A namespace is synced once these were listed in it. If a child of another kind is missing from the cache, its create
# fails and it is read. Without revisions, pods would be created from a new template.
NEEDED = {DLMS, PODS, kinds.REVISIONS, kinds.DEPLOYMENTS}
LISTS_AT_ONCE = 2  # each holds a page in memory
PERIOD_SECONDS = 600.0  # between two lists of a kind
AFTER_KOPF_SECONDS = 30.0  # from a list by kopf, which reports no deletions, to the next list by the resync
LONGEST_RETRY_SECONDS = 30.0
# kopf does not watch the kinds of OPTIONAL, because it exits when a watched kind disappears. They are listed every
# OPTIONAL_SECONDS while the cache has any or writes fail, and every DISCOVERY_SECONDS while a resource waits for their
# CustomResourceDefinition, or for a Gateway to report on its route.
OPTIONAL_SECONDS = 60.0
DISCOVERY_SECONDS = 15.0
STEP_SECONDS = 5.0  # between checks of whether a list is due
# Children and pods change in bursts. One reconcile and one status write serve a burst. The pause is shorter if it ends
# with a Ready pod, which users wait for.
DEBOUNCE_SECONDS = 1.0
DEBOUNCE_READY_SECONDS = 0.25

log = logging.getLogger(__name__)


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


@dataclass(eq=False)
class Source:
    """One kind in one namespace (None: all), and the state of its lists."""

    kind: ApiKind
    namespace: str | None
    selector: str
    tried: bool = False
    listed: bool = False
    failures: int = 0
    requested: float = math.inf  # loop time of a list that kopf made necessary


class Resync:
    """Lists all kinds: at the start, after each list by kopf, after failures, and every 10 minutes."""

    def __init__(
        self, client: Client, cache: Cache, events: EventHandler, settings: Settings, metrics: Metrics
    ) -> None:
        self._client = client
        self._cache = cache
        self._events = events
        self._metrics = metrics
        self._slots = asyncio.Semaphore(LISTS_AT_ONCE)
        self._unlisted = metrics.unlisted_namespaces
        self._synced: set[str | None] = set()  # namespaces that were synced once; None: all namespaces
        self.synced = asyncio.Event()  # set once all lists were tried and a namespace is synced
        self.apis: frozenset[str] = frozenset()  # the kinds of OPTIONAL that the API server serves (ApiKind.api)
        selectors = {DLMS: ",".join(settings.watch_selector)}
        selectors[kinds.ENDPOINT_SLICES] = f"{SERVICE_LABEL},{OWN_SLICES}"
        self._sources = {
            kind.path(namespace): Source(kind, namespace, selectors.get(kind, SERVICE_LABEL))
            for kind in (*kinds.CACHED, *((kinds.JOBS, kinds.CLAIMS) if settings.model_cache else ()))
            if kind not in kinds.GRANTED or getattr(settings, kinds.GRANTED[kind])
            for namespace in settings.watch_namespaces or (None,)
        }

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources.values():
                group.create_task(self._repeat(source))

    def is_synced(self, key: Key) -> bool:
        """Returns whether the cache has what a reconcile of the resource needs. Other namespaces do not matter."""
        return not self._synced.isdisjoint((None, key.namespace))

    def kopf_has_listed(self, path: str) -> None:
        """Schedules a list of a kind that kopf has just listed.

        Args:
            path: The path of the list's URL.
        """
        if source := self._sources.get(path):
            due = asyncio.get_running_loop().time() + AFTER_KOPF_SECONDS
            source.requested = min(source.requested, due)

    async def _repeat(self, source: Source) -> NoReturn:
        now = asyncio.get_running_loop().time
        while True:
            source.requested = math.inf
            await self._list(source)
            end = now()
            while (left := min(source.requested, end + self._pause(source)) - now()) > 0:
                await asyncio.sleep(min(left, STEP_SECONDS))

    def _pause(self, source: Source) -> float:
        """Returns the current pause between two lists, in seconds."""
        if source.failures:
            return min(2.0 ** (source.failures - 1), LONGEST_RETRY_SECONDS)
        if source.kind not in kinds.OPTIONAL:
            return PERIOD_SECONDS
        if source.kind.api not in self.apis:
            return DISCOVERY_SECONDS if self._is_reported(MISSING_CRD) else PERIOD_SECONDS
        # Also without a route: its CustomResourceDefinition may be on its way out, whose objects are deleted first.
        if source.kind is kinds.HTTP_ROUTES and self._is_reported(WAITING, ROUTE_READY):
            return DISCOVERY_SECONDS
        # If a write fails, the CustomResourceDefinition may be gone, and with it all objects.
        is_used = self._cache.holds(source.kind) or self._is_reported(API_ERROR)
        return OPTIONAL_SECONDS if is_used else PERIOD_SECONDS

    def _is_reported(self, reason: str, kind: str | None = None) -> bool:
        """Returns whether a condition of a resource, of the type `kind` unless that is None, has this reason."""
        conditions = (c for _, one in self._cache.resources() for c in section(one, "status").get("conditions") or ())
        return any(c["reason"] == reason and kind in (None, c["type"]) for c in conditions)

    async def _list(self, source: Source) -> None:
        def apply(item: Obj) -> Obj:
            self._events.on_event(source.kind, None, item)
            return {member: item["metadata"][member] for member in ("namespace", "name", "uid")}

        try:
            async with self._slots:
                listed, version = await self._client.list(
                    source.kind, source.namespace, source.selector, transform=apply
                )
        except ApiError as error:
            self._failed(source, error)
        else:
            found = {(Key(one["namespace"], one["name"]), one["uid"]) for one in listed}
            self._events.on_list(source.kind, source.namespace, found, version)
            source.failures, source.listed = 0, True
            if source.kind in kinds.OPTIONAL:
                self._set_served(source.kind, True)
        source.tried = True
        self._note_synced(source.namespace)

    def _note_synced(self, namespace: str | None) -> None:
        sources = self._sources.values()
        own = [source for source in sources if source.namespace == namespace]
        complete = all(source.tried and (source.listed or source.kind not in NEEDED) for source in own)
        if complete and namespace not in self._synced:
            self._synced.add(namespace)
            if self.synced.is_set():
                self._events.enqueue_all()  # the workers have skipped the resources of this namespace
        unlisted = {s.namespace for s in sources if s.kind in NEEDED and s.tried and (s.failures or not s.listed)}
        self._unlisted.set(len(unlisted))
        if self._synced and all(source.tried for source in sources):
            self.synced.set()

    def _failed(self, source: Source, error: ApiError) -> None:
        if error.not_found and source.kind in kinds.OPTIONAL:
            source.failures = 0
            self._events.on_list(source.kind, source.namespace, set(), sys.maxsize)
            self._set_served(source.kind, False)
            return
        source.failures = min(source.failures + 1, 10)
        self._metrics.api_errors.labels(str(error.status)).inc()
        hint = "; check that its CustomResourceDefinition is installed" if error.not_found else ""
        if source.namespace is not None and error.status == 403:
            hint = (
                f"; if namespace {source.namespace} was deleted, its Role is gone: helm upgrade creates it in a new "
                "namespace of this name, or remove the name from watchNamespaces"
            )
        log.warning("cannot list %s: %s%s", source.kind.plural, error, hint)

    def _set_served(self, kind: ApiKind, served: bool) -> None:
        """Records whether the API server serves a kind of OPTIONAL, on which plans depend."""
        apis = self.apis | {kind.api} if served else self.apis - {kind.api}
        if apis != self.apis:
            self.apis = apis
            self._events.enqueue_all()

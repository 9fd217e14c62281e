"""What the leading pod does: keep the store true, run the queue's workers, ask loading pods, scale."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime

import aiohttp

from unmask_operator.autoscaler.loop import Autoscaler
from unmask_operator.autoscaler.scrape import scrape
from unmask_operator.client.client import Client
from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import EVENTS, OPTIONAL, PODS, SERVICES, ApiKind, watched
from unmask_operator.client.store import Store, slim
from unmask_operator.controller.nodes import Nodes
from unmask_operator.controller.pod_events import PodEvents, Silent
from unmask_operator.controller.progress import Progress, Target, is_loading
from unmask_operator.controller.queue import WorkQueue
from unmask_operator.controller.reconcile import Knowledge, Reconciler
from unmask_operator.objects import SERVICE_LABEL, Key, Obj
from unmask_operator.process.cold_starts import ColdStarts
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings
from unmask_operator.state.plan import MISSING_CRD
from unmask_operator.status.pods import is_ready
from unmask_operator.status.told import is_silent

WORKERS = 16
LOOK_AGAIN_SECONDS = 300.0  # between looks at every resource, by what is known: nothing is read
# Between lists of everything. The watches lose nothing by themselves, so that this is for what nobody thought of.
RESYNC_SECONDS = 3600.0
UNWATCHED_RESYNC_SECONDS = 300.0  # while there is a kind that came after the watches were begun
SECOND_RESYNC_SECONDS = 20.0  # what goes between our first lists and those of the watches is told by neither
# Children and pods change in bursts: one reconcile, and one write of the status, for each. A burst that ends in a pod
# that is Ready is what people wait for.
SETTLE_SECONDS = 1.0
SETTLE_READY_SECONDS = 0.25
LOOK_SECONDS = 5.0  # between looks at pods that load or say nothing
DISCOVERY_SECONDS = 15.0  # between looks for a kind that a resource waits for

log = logging.getLogger(__name__)


class Leader:
    """One leadership. Everything is made anew for the next one, which begins from lists of its own.

    Attributes:
        knows: everything has been listed once.
    """

    def __init__(
        self, client: Client, store: Store, queue: WorkQueue[Key], settings: Settings, metrics: Metrics
    ) -> None:
        self._client = client
        self._store = store
        self._queue = queue
        self._settings = settings
        self._metrics = metrics
        self._apis: frozenset[str] = frozenset()
        self._watched: frozenset[str] = frozenset()  # those that were there at the beginning
        self.knows = False
        self._nodes = Nodes(client, settings.read_nodes, queue.add)
        self._progress = Progress(self._loading, queue.add)
        self._pod_events = PodEvents(self._silent, self._events_of, queue.add)
        self._autoscaler: Autoscaler | None = None
        self._cold_starts = ColdStarts(metrics.cold_starts.observe)
        self._reconciler = Reconciler(client, store, settings, self._knowledge(), metrics)

    async def run(self) -> None:
        """Until cancelled."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            self._autoscaler = Autoscaler(self, functools.partial(scrape, session), lambda: datetime.now(UTC))
            await self._first_resync()
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(self._work())
                group.create_task(self._resync_for_ever())
                group.create_task(self._look_again_for_ever())
                group.create_task(self._discover_for_ever())
                group.create_task(_every(LOOK_SECONDS, functools.partial(self._progress.poll, session)))
                group.create_task(_every(LOOK_SECONDS, self._pod_events.poll))
                group.create_task(self._autoscaler.run())

    async def resync(self) -> None:
        """List everything, put right what the watches missed, and have every resource reconciled."""
        found = [kind for kind in OPTIONAL if await self._client.has_api(kind)]
        kinds = watched(found)
        namespaces = self._settings.watch_namespaces or (None,)
        await asyncio.gather(*(self._list(kind, namespace) for kind in kinds for namespace in namespaces))
        self._apis = frozenset(kind.api for kind in found)  # listed, too: a new CRD may not be, for its first moments
        self._look_at_all()

    def _look_at_all(self) -> None:
        for key, _ in self._store.services():
            self._queue.add(key)

    async def _look_again_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            self._look_at_all()

    async def _list(self, kind: ApiKind, namespace: str | None) -> None:
        selector = ",".join(self._settings.watch_selector) if kind is SERVICES else SERVICE_LABEL
        since = self._store.newest(kind)
        items, version = await self._client.list(kind, namespace, selector, keep=functools.partial(slim, kind))
        for key in self._store.replace(kind, namespace, items, version, since):
            self._queue.add(key)  # at once: another kind's list may fail, and what was news is none the next time

    async def _first_resync(self) -> None:
        pause = 1.0
        while True:
            try:
                await self.resync()
            except ApiError as error:
                self._metrics.api_errors.labels(str(error.status)).inc()
                log.warning("cannot list what is there: %s", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 30.0)
            else:
                self.knows = True
                self._watched = self._apis
                return

    async def _resync_for_ever(self) -> None:
        pause = SECOND_RESYNC_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                await self.resync()
            except ApiError as error:
                self._metrics.api_errors.labels(str(error.status)).inc()
                log.warning("the slow round did not see everything: %s", error)
            else:
                pause = RESYNC_SECONDS if self._apis <= self._watched else UNWATCHED_RESYNC_SECONDS

    async def _discover_for_ever(self) -> None:
        """While a resource waits for a CRD, look for it; while none does, nothing is asked."""
        while True:
            await asyncio.sleep(DISCOVERY_SECONDS)
            missing = [kind for kind in OPTIONAL if kind.api not in self._apis]
            if not missing or not any(lacks_crd(service) for _, service in self._store.services()):
                continue
            try:
                if any([await self._client.has_api(kind) for kind in missing]):
                    await self.resync()
            except ApiError as error:
                log.warning("cannot look for the kinds that are missing: %s", error)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            if not self._keep(key):
                continue
            try:
                self._cold_starts.look(key, self._store.pods(key))
                result = await self._reconciler.reconcile(key, patient=not self._queue.failures(key))
            except ApiError as error:
                pause = self._queue.failed(key, error.retry_after or 0.0)
                log.warning("again in %.0f s: %s", pause, error, extra={"service": key})
            except Exception:  # a mistake of ours in one resource must not stop the others
                pause = self._queue.failed(key)
                log.exception("again in %.0f s", pause, extra={"service": key})
            else:
                if result.refused:
                    self._queue.failed(key)
                else:
                    self._queue.done(key, result.again)

    def _keep(self, key: Key) -> bool:
        """False for a resource that has lost the labels by which it was ours; the watch says so, but the answer to a
        status that was written at that moment may have brought it back into the store."""
        service = self._store.service(key)
        if service is None or self._settings.selects(service["metadata"].get("labels") or {}):
            return True
        self._store.delete(SERVICES, service)
        self._queue.done(key)
        return False

    def _knowledge(self) -> Knowledge:
        return Knowledge(
            apis=lambda: self._apis,
            nodes=self._nodes.needed,
            loads=lambda: self._progress.loads,
            revisions=lambda: self._progress.revisions,
            told=lambda: self._pod_events.told,
            decision=lambda key: self._autoscaler.decision(key) if self._autoscaler else None,
        )

    def _loading(self) -> Iterable[Target]:
        for key, _ in self._store.services():
            for pod in self._store.pods(key):
                if is_loading(pod) or self._progress.wants_revision(pod):
                    yield Target(pod["metadata"]["uid"], pod["status"]["podIP"], key)

    def _silent(self) -> Iterable[Silent]:
        now = datetime.now(UTC)
        for key, _ in self._store.services():
            for pod in self._store.pods(key):
                if is_silent(pod, now):
                    yield Silent(pod["metadata"]["uid"], key)

    async def _events_of(self, pod: Silent) -> Sequence[Obj]:
        events, _ = await self._client.list(EVENTS, pod.key.namespace, fields=f"regarding.uid={pod.uid}")
        return events

    # What the autoscaler asks for (autoscaler.loop.Fleet).

    def services(self) -> Iterable[tuple[Key, Obj]]:
        return self._store.services()

    def pods(self, key: Key) -> Sequence[Obj]:
        return self._store.pods(key)

    async def scale(self, key: Key, replicas: int) -> None:
        await self._client.patch_scale(*key, replicas)
        self._metrics.writes.labels("scale").inc()

    def decided(self, key: Key) -> None:
        self._queue.add(key)


async def _every(seconds: float, look: Callable[[], Awaitable[None]]) -> None:
    while True:
        await look()
        await asyncio.sleep(seconds)


def settle_seconds(kind: ApiKind, obj: Obj) -> float:
    """How long after news of an object its resource is reconciled: a resource itself at once."""
    if kind is SERVICES:
        return 0.0
    return SETTLE_READY_SECONDS if kind is PODS and is_ready(obj) else SETTLE_SECONDS


def lacks_crd(service: Obj) -> bool:
    """Its status says that a CustomResourceDefinition is missing."""
    conditions = (service.get("status") or {}).get("conditions") or ()
    return any(c["reason"] == MISSING_CRD for c in conditions)

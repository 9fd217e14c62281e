"""What the leading pod does: keep the store true, run the queue's workers, ask loading pods, scale."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

import aiohttp

from unmask_operator.autoscaler.loop import Autoscaler
from unmask_operator.autoscaler.scrape import scrape
from unmask_operator.client.client import Client
from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import CHILDREN, OPTIONAL, PODS, SERVICES, ApiKind, kind_of
from unmask_operator.client.store import Store, slim
from unmask_operator.controller.nodes import Nodes
from unmask_operator.controller.pod_events import PodEvents
from unmask_operator.controller.progress import Progress
from unmask_operator.controller.queue import WorkQueue
from unmask_operator.controller.reconcile import Reconciler
from unmask_operator.objects import SERVICE_LABEL, Key, Obj, Ref
from unmask_operator.process.cold_starts import ColdStarts
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings
from unmask_operator.state.observed import Observed
from unmask_operator.state.plan import MISSING_CRD
from unmask_operator.status.pods import is_ready

WORKERS = 16
LOOK_AGAIN_SECONDS = 300.0  # between looks at every resource, by what is known: nothing is read
KINDS = (SERVICES, PODS, *CHILDREN)
# What must have been listed before anything is written: of other children that a plan has, a create tells that they are
# there, but pods would be made anew without their pin.
NEEDED = {SERVICES, PODS, kind_of("apps/v1", "ControllerRevision"), kind_of("apps/v1", "Deployment")}
# Between lists of everything. The watches lose nothing by themselves, so that this is for what nobody thought of.
RESYNC_SECONDS = 3600.0
LONGEST_RETRY_SECONDS = 30.0  # while a kind cannot be listed
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
        known: set once everything that is NEEDED has been listed.
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
        self._watched: frozenset[str] | None = None  # those that were there at the beginning
        self.known = asyncio.Event()
        self._nodes = Nodes(client, settings.read_nodes, queue.add)
        self._progress = Progress(store.every_pod, queue.add)
        self._pod_events = PodEvents(client, store.every_pod, queue.add)
        self._autoscaler: Autoscaler | None = None
        self._cold_starts = ColdStarts(metrics.cold_starts.observe, datetime.now(UTC))
        self._reconciler = Reconciler(client, store, settings, self._observe, metrics)

    async def run(self) -> None:
        """Until cancelled."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            look = functools.partial(scrape, session)
            self._autoscaler = Autoscaler(
                self._store.services, self._store.pods, self._scale, self._queue.add, look, lambda: datetime.now(UTC)
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._resync_for_ever())
                await self.known.wait()
                for _ in range(WORKERS):
                    group.create_task(self._work())
                group.create_task(_every(LOOK_AGAIN_SECONDS, self._look_at_all))
                group.create_task(_every(DISCOVERY_SECONDS, self._discover))
                group.create_task(_every(LOOK_SECONDS, functools.partial(self._progress.poll, session)))
                group.create_task(_every(LOOK_SECONDS, self._pod_events.poll))
                group.create_task(self._autoscaler.run())

    async def resync(self, kinds: Sequence[ApiKind] = KINDS) -> Sequence[ApiKind]:
        """List these kinds, put right what the watches missed, and have every resource reconciled. Returns the kinds
        that could not be listed; only those that are NEEDED hold anything up."""
        listed = await asyncio.gather(*map(self._list, kinds))
        failed = [kind for kind, done in zip(kinds, listed, strict=True) if not done]
        if self.known.is_set() or not NEEDED.intersection(failed):
            self.known.set()
            await self._look_at_all()
        return failed

    async def _list(self, kind: ApiKind) -> bool:
        selector = ",".join(self._settings.watch_selector) if kind is SERVICES else SERVICE_LABEL
        try:
            there = kind not in OPTIONAL or await self._client.has_api(kind)
            for namespace in (self._settings.watch_namespaces or (None,)) if there else ():
                keep = functools.partial(slim, kind)
                items, version = await self._client.list(kind, namespace, selector, keep=keep)
                for key in self._store.replace(kind, namespace, items, version):
                    self._queue.add(key)  # at once: another list may fail, and what was news is none the next time
        except ApiError as error:
            self._metrics.api_errors.labels(str(error.status)).inc()
            log.warning("cannot list %s: %s", kind.plural, error)
            return False
        if kind in OPTIONAL:  # and listed, which a new CRD may not be for its first moments
            self._apis = self._apis | {kind.api} if there else self._apis - {kind.api}
        return True

    async def _resync_for_ever(self) -> None:
        """All kinds now and then; those that could not be listed soon again."""
        rounds = failures = 0
        failed: Sequence[ApiKind] = ()
        while True:
            if failed := await self.resync(failed or KINDS):
                pause = min(2.0**failures, LONGEST_RETRY_SECONDS)
                failures += 1
            else:
                rounds, failures = rounds + 1, 0
                self._watched = self._apis if self._watched is None else self._watched
                pause = RESYNC_SECONDS if self._apis <= self._watched else UNWATCHED_RESYNC_SECONDS
                pause = SECOND_RESYNC_SECONDS if rounds == 1 else pause
            await asyncio.sleep(pause)

    async def _look_at_all(self) -> None:
        for key, _ in self._store.services():
            self._queue.add(key)

    async def _discover(self) -> None:
        """While a resource waits for a CRD, look for it; while none does, nothing is asked."""
        missing = [kind for kind in OPTIONAL if kind.api not in self._apis]
        if missing and any(lacks_crd(service) for _, service in self._store.services()):
            await self.resync(missing)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
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

    async def _observe(self, service: Obj, children: Mapping[Ref, Obj], pods: Sequence[Obj]) -> Observed:
        """A resource and its objects, with all else that is known of them now."""
        key = Key(service["metadata"]["namespace"], service["metadata"]["name"])
        return Observed(
            service=service,
            now=datetime.now(UTC),
            children=children,
            pods=pods,
            apis=self._apis,
            nodes=await self._nodes.needed(pods),
            loads=self._progress.loads,
            revisions=self._progress.revisions,
            told=self._pod_events.told,
            decision=self._autoscaler.decision(key) if self._autoscaler else None,
        )

    async def _scale(self, key: Key, replicas: int) -> None:
        await self._client.patch_scale(*key, replicas)
        self._metrics.writes.labels("scale").inc()


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

"""What the leading pod does: sync the cache, run kopf and the queue's workers, poll loading pods, scale."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

from unmask_operator.autoscaler.loop import Autoscaler
from unmask_operator.autoscaler.scrape import scrape
from unmask_operator.controller.cold_starts import ColdStarts
from unmask_operator.controller.event_handler import EventHandler
from unmask_operator.controller.nodes import Nodes
from unmask_operator.controller.pod_events import PodEvents
from unmask_operator.controller.pod_progress import Progress
from unmask_operator.controller.reconciler import Reconciler
from unmask_operator.controller.resync import Resync
from unmask_operator.controller.workqueue import WorkQueue
from unmask_operator.kube.cache import Store
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import SERVICES
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key, Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.pod_http import PodSlots, pod_session
from unmask_operator.render.adapters import listed
from unmask_operator.settings import Backoffs, Settings

WORKERS = 16
LOOK_AGAIN_SECONDS = 300.0  # between looks at every resource, by what is known: nothing is read
LOOK_SECONDS = 5.0  # between looks at pods that load or say nothing

log = logging.getLogger(__name__)


# Watches every kind until it fails or is cancelled. It reports each event to the first and each list to the second.
Watch = Callable[[EventHandler, Resync], Awaitable[None]]


class Leader:
    """One leadership, which begins from lists of its own."""

    def __init__(
        self, client: Client, store: Store, queue: WorkQueue[Key], settings: Settings, metrics: Metrics, watch: Watch
    ) -> None:
        self._client = client
        self._store = store
        self._queue = queue
        self._metrics = metrics
        self._watch = watch
        self._events = EventHandler(store, queue.add)
        self._resync = Resync(client, store, self._events, settings, metrics)
        self.synced = self._resync.synced  # nothing is written before
        self._nodes = Nodes(client, settings.read_nodes, queue.add)
        self._slots = PodSlots()
        self._progress = Progress(
            store.every_pod, queue.add, lambda key: listed(store.children(key), key.name), slots=self._slots
        )
        self._pod_events = PodEvents(client, store.every_pod, queue.add)
        self._autoscaler: Autoscaler | None = None
        self._cold_starts = ColdStarts(metrics.cold_starts.observe, datetime.now(UTC))
        self._reconciler = Reconciler(client, store, settings, self._observe, metrics)

    async def run(self) -> None:
        """Until cancelled."""
        async with pod_session() as session:
            look = functools.partial(scrape, session, slots=self._slots)
            store, now = self._store, functools.partial(datetime.now, UTC)
            self._autoscaler = Autoscaler(
                store.services, store.service, store.pods, self._scale, self._queue.add, look, now
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._resync.run())
                await self.synced.wait()
                for _ in range(WORKERS):
                    group.create_task(self._work())
                group.create_task(_every(LOOK_AGAIN_SECONDS, self._look_at_all))
                group.create_task(_every(LOOK_SECONDS, functools.partial(self._progress.poll, session)))
                group.create_task(_every(LOOK_SECONDS, self._pod_events.poll))
                group.create_task(self._autoscaler.run())
                await self._discovered()
                await self._watch(self._events, self._resync)

    async def _discovered(self) -> None:
        """Waits until discovery shows the resource's kind. kopf reads it once and never watches what is missing."""
        for pause in Backoffs():
            try:
                if await self._client.discovers(SERVICES):
                    return
            except ApiError as error:
                log.warning("cannot read the API server's discovery: %s", error)
            await asyncio.sleep(pause)

    async def _look_at_all(self) -> None:
        for key, _ in self._store.services():
            self._queue.add(key)

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
            apis=self._resync.apis,
            nodes=await self._nodes.needed(pods),
            loads=self._progress.loads,
            revisions=self._progress.revisions,
            adapters=self._progress.adapters,
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

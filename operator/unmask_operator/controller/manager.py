"""Runs the controllers of the leader: resync, kopf, workers of the work queue, polls of pods, autoscaler."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from unmask_operator.autoscaler.loop import Autoscaler
from unmask_operator.autoscaler.scrape import scrape
from unmask_operator.controller.activators import Activators
from unmask_operator.controller.cold_starts import ColdStarts
from unmask_operator.controller.model_fetches import ModelFetches
from unmask_operator.controller.nodes import Nodes
from unmask_operator.controller.pod_events import PodEvents
from unmask_operator.controller.pod_progress import PodProgress
from unmask_operator.controller.reconciler import Reconciler
from unmask_operator.controller.resync import EventHandler, Resync
from unmask_operator.controller.workqueue import WorkQueue
from unmask_operator.kinds import DLMS
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key, Obj, Ref, is_ready
from unmask_operator.plan.observed import Observed
from unmask_operator.pod_http import PODS_AT_ONCE, pod_session
from unmask_operator.render.adapters import listed
from unmask_operator.settings import Backoffs, Settings
from unmask_operator.status.pods.pod_status import load_seconds

WORKERS = 16
REQUEUE_ALL_SECONDS = 300.0  # between reconciles of all resources from the cache
POLL_SECONDS = 5.0  # between polls of pods that are loading

log = logging.getLogger(__name__)


# Watches every kind until it fails or is cancelled. Events go to the EventHandler, reports of lists to the Resync.
Watch = Callable[[EventHandler, Resync], Awaitable[None]]


class Manager:
    """Runs the controllers of one leader. The cache is filled by lists first."""

    def __init__(
        self, client: Client, cache: Cache, queue: WorkQueue[Key], settings: Settings, metrics: Metrics, watch: Watch
    ) -> None:
        self._client = client
        self._cache = cache
        self._queue = queue
        self._metrics = metrics
        self._settings = settings
        self._watch = watch
        self._events = EventHandler(cache, queue.add)
        self._resync = Resync(client, cache, self._events, settings, metrics)
        self.synced = self._resync.synced  # reconciles start afterwards
        self._nodes = Nodes(client, settings.read_nodes, queue.add)
        self._slots = asyncio.Semaphore(PODS_AT_ONCE)
        self._cold_starts = ColdStarts(
            metrics.cold_starts.observe,
            lambda phase, seconds: metrics.cold_start_phases.labels(phase).observe(seconds),
            datetime.now(UTC),
        )
        self._pod_progress = PodProgress(
            cache.all_pods,
            queue.add,
            lambda key: listed(cache.children(key), key.name),
            slots=self._slots,
            phase_reported=lambda key, uid, phase: self._cold_starts.phase_reported(key, uid, phase, datetime.now(UTC)),
        )
        self._fetches = ModelFetches(client, cache, queue.add, self._slots)
        self._pod_events = PodEvents(client, cache.all_pods, queue.add)
        self._activators = Activators(client, settings, cache.resources, cache.children, queue.add)
        self._autoscaler: Autoscaler | None = None
        self._reconciler = Reconciler(client, cache, settings, self._observe, metrics)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with pod_session() as session:
            poll, now = functools.partial(scrape, session, slots=self._slots), functools.partial(datetime.now, UTC)
            cache, decided, routing = self._cache, self._queue.add, self._activators.routing
            self._autoscaler = Autoscaler(
                self._synced_resources, cache.resource, cache.pods, self._scale, decided, poll, now, routing
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._resync.run())
                await self.synced.wait()
                for _ in range(WORKERS):
                    group.create_task(self._work())
                group.create_task(_every(REQUEUE_ALL_SECONDS, self._requeue_all))
                group.create_task(_every(POLL_SECONDS, functools.partial(self._pod_progress.poll, session)))
                group.create_task(_every(POLL_SECONDS, self._pod_events.poll))
                group.create_task(_every(POLL_SECONDS, self._activators.poll))
                if self._settings.model_cache:
                    group.create_task(_every(POLL_SECONDS, functools.partial(self._fetches.poll, session)))
                group.create_task(self._autoscaler.run())
                await self._discovered()
                await self._watch(self._events, self._resync)

    async def _discovered(self) -> None:
        """Waits until discovery lists the resource's kind. kopf reads discovery once and ignores kinds added later."""
        for pause in Backoffs():
            try:
                if await self._client.discovers(DLMS):
                    return
            except ApiError as error:
                log.warning("cannot read the API server's discovery: %s", error)
            await asyncio.sleep(pause)

    def _synced_resources(self) -> Iterator[tuple[Key, Obj]]:
        return ((key, resource) for key, resource in self._cache.resources() if self._resync.is_synced(key))

    async def _requeue_all(self) -> None:
        self._events.enqueue_all()

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            if not self._resync.is_synced(key):
                self._queue.done(key)  # the resync enqueues it again
                continue
            try:
                self._cold_starts.observe(key, self._cache.pods(key))
                result = await self._reconciler.reconcile(key, first_attempt=not self._queue.num_requeues(key))
            except ApiError as error:
                pause = self._queue.add_rate_limited(key, error.retry_after or 0.0)
                log.warning("reconcile failed, next try in %.0f s: %s", pause, error, extra={"service": key})
            except Exception:  # a bug that one resource triggers must not stop the others
                pause = self._queue.add_rate_limited(key)
                log.exception("reconcile failed, next try in %.0f s", pause, extra={"service": key})
            else:
                if result.refused:
                    self._queue.add_rate_limited(key)
                else:
                    self._queue.done(key, result.requeue_after)

    async def _observe(self, resource: Obj, children: Mapping[Ref, Obj], pods: Sequence[Obj]) -> Observed:
        """Returns the observed state of a resource: its objects and everything else that is known."""
        key, now = Key.of(resource), datetime.now(UTC)
        return Observed(
            resource=resource,
            now=now,
            children=children,
            pods=pods,
            apis=self._resync.apis,
            nodes=await self._nodes.needed(pods),
            loads=self._pod_progress.loads,
            revisions=self._pod_progress.revisions,
            adapters=self._pod_progress.adapters,
            pod_events=self._pod_events.events,
            decision=self._autoscaler.decision(key) if self._autoscaler else None,
            activator=await self._activators.observe(key, resource),
            longest_load=max((load_seconds(pod, now) for pod in pods if is_ready(pod)), default=0.0),
            fetches=self._fetches.reports,
            claim=await self._fetches.claim(resource) if self._settings.model_cache else None,
        )

    async def _scale(self, key: Key, replicas: int) -> None:
        await self._client.patch_scale(*key, replicas)
        self._metrics.writes.labels("scale").inc()


async def _every(seconds: float, poll: Callable[[], Awaitable[None]]) -> None:
    while True:
        await poll()
        await asyncio.sleep(seconds)
